"""Structured logs on standard error: JSON for machines, aligned text for people."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

from server.config import TelemetryConfig


def configure_logging(config: TelemetryConfig) -> None:
    """Set up structlog, and what libraries log through the standard library, once per process."""
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    console = config.log_format == "console" or (config.log_format == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    if console:
        last = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
