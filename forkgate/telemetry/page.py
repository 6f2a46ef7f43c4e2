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

    @property
    def reader(self) -> MetricReader:
        return self._prometheus

    async def start(self) -> None:
        """Raises PageError when the address is taken."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, self.port).start()
        except OSError as error:
            await runner.cleanup()
            raise PageError(
                f"telemetry.prometheus: {self.host}:{self.port} cannot be listened on: {error.strerror}; "
                "choose another port"
            ) from error
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST}
        )
