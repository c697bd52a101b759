"""Several servers behind one address, on one machine or many: the app of ``rag_r1.retrieval`` on Ray Serve.

Each replica opens the index by itself, memory-mapped, so that replicas on one machine share the pages of one copy. A request
goes to the replica with the shortest queue; each batches and caches for itself.
"""

from __future__ import annotations

import signal
import threading
import time

import ray
from ray import serve as ray_serve

from rag_r1.retrieval.settings import ServerSettings

START_TIMEOUT_S = 600.0
_MOST_ONGOING = 512  # requests at one replica; more wait at the proxy


def serve(
    settings: ServerSettings, host: str, port: int, replicas: int, gpus_per_replica: float, *, ready: str
) -> None:
    """Serve until SIGINT or SIGTERM; prints ``ready`` and what is served when every replica answers.

    Joins the Ray cluster of this machine if there is one, else starts one here and ends it.

    Raises:
        ValueError: replicas that did not become healthy, with what Ray Serve says of them.
    """
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, configure_logging=False, include_dashboard=False)
    try:
        ray_serve.start(http_options={"host": host, "port": port})
        # Serve makes the app in the replica, where the index is opened
        replica = ray_serve.ingress(lambda: settings.app(settings.open()))()
        deployment = ray_serve.deployment(
            replica,
            name="retrieval",
            num_replicas=replicas,
            max_ongoing_requests=_MOST_ONGOING,
            ray_actor_options={"num_cpus": 0 if gpus_per_replica else 0.5, "num_gpus": gpus_per_replica},
        )
        ray_serve.run(deployment.bind(), name="retrieval", route_prefix="/", blocking=False)
        _wait_until_healthy(replicas)
        print(f"{ready}, {replicas} replicas of {settings.index}", flush=True)
        stopped = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        while not stopped.wait(0.5):
            pass
    finally:
        ray_serve.shutdown()
        if started:
            ray.shutdown()


def _wait_until_healthy(replicas: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        state = ray_serve.status().applications["retrieval"]
        running = state.deployments["retrieval"].replica_states.get("RUNNING", 0) if state.deployments else 0
        if state.status == "RUNNING" and running == replicas:
            return
        if state.status == "DEPLOY_FAILED" or time.monotonic() > deadline:
            raise ValueError(f"{running} of {replicas} replicas run; Ray Serve says: {state.message or state.status}")
        time.sleep(0.2)
