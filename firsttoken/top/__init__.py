"""What `firsttoken top` shows: read (reading), made sense of (view), drawn (screen)."""
