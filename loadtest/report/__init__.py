"""One self-contained page that shows what was measured: no scripts from elsewhere, no fonts, no network."""
