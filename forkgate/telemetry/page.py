"""``GET /metrics`` for a Prometheus server, on the judge's own event loop."""

from __future__ import annotations

from aiohttp import web
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import MetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


class PageError(Exception):
    """The address cannot be listened on."""


class MetricsPage:
    """The page and the reader that fills it."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._registry = CollectorRegistry()
        self._prometheus = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)
        self._runner: web.AppRunner | None = None
        self.trouble: str | None = None
        """Why it could not be listened on, last time."""

    @property
    def reader(self) -> MetricReader:
        return self._prometheus

    @property
    def address(self) -> str | None:
        """Where it is read; None while it is not listened on."""
        return f"http://{self.host}:{self.port}/metrics" if self._runner is not None else None

    async def start(self) -> None:
        """Listen, unless it does already. Raises PageError when the address is taken; try again later."""
        if self._runner is not None:
            return
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, self.port).start()
        except OSError as error:
            await runner.cleanup()
            self.trouble = (
                f"telemetry.prometheus: {self.host}:{self.port} cannot be listened on: {error.strerror}; "
                "stop whoever holds it or choose another port"
            )
            raise PageError(self.trouble) from error
        self._runner, self.trouble = runner, None
        self.port = runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST}
        )
