"""Several servers behind one address, on one machine or many: the app of ``rag_r1.retrieval`` on Ray Serve.

Each replica opens the index by itself, memory-mapped, so that replicas on one machine share the pages of one copy. A request
goes to the replica with the shortest queue; each batches, caches and counts for itself, and ``/metrics`` is of the one that
happens to answer.
"""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from typing import Any

import ray
from ray import serve as ray_serve

from rag_r1.retrieval.manifest import Manifest
from rag_r1.retrieval.settings import ServerSettings

START_TIMEOUT_S = 600.0
_ANSWER_TIMEOUT_S = 30.0
_CPUS = 0.5  # that Ray sets aside for a replica without a GPU


def serve(
    settings: ServerSettings, host: str, port: int, replicas: int, gpus_per_replica: float, *, ready: str
) -> None:
    """Serve until SIGINT or SIGTERM; prints ``ready`` and what is served when every replica answers.

    Joins the Ray cluster of this machine if there is one, else starts one here and ends it. The address is on this machine
    only, also where replicas run on others.

    Raises:
        ValueError: an index that is not complete, too few CPUs or GPUs, or replicas that did not become healthy, with what Ray
            Serve says of them.
        OSError: the address does not answer.
    """
    if settings.retriever != "bm25":  # told here in a second, by a replica after half a minute
        Manifest.load(settings.index).check_complete()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    started = not ray.is_initialized()
    try:
        if started:
            ray.init(log_to_driver=False, configure_logging=False, include_dashboard=False)
        cpus = 0 if gpus_per_replica else _CPUS
        _check_room(CPU=replicas * cpus, GPU=replicas * gpus_per_replica)
        ray_serve.start(http_options={"host": host, "port": port}, proxy_location="HeadOnly")
        # Serve makes the app in the replica, where the index is opened
        replica = ray_serve.ingress(lambda: settings.app(settings.open()))()
        deployment = ray_serve.deployment(
            replica,
            name="retrieval",
            num_replicas=replicas,
            # the replica bounds its queue itself, in queries, and says when to come again
            max_ongoing_requests=settings.limits.max_waiting + settings.limits.max_batch,
            max_constructor_retry_count=1,
            ray_actor_options={"num_cpus": cpus, "num_gpus": gpus_per_replica},
        )
        target = ray_serve.RunTarget(deployment.bind(), name="retrieval", route_prefix="/")
        ray_serve.run_many([target], wait_for_applications_running=False)
        _wait_until_healthy(replicas)
        card = _health(ready)
        print(
            f"{ready}, {card['rows']} passages, encoder {card['encoder']}, index {card['index_id']}, {replicas} replicas",
            flush=True,
        )
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the end is on its way, and must not be cut short
        ray_serve.shutdown()
        if started:
            ray.shutdown()


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def _check_room(**needed: float) -> None:
    there = ray.cluster_resources()
    for kind, amount in needed.items():
        if amount > there.get(kind, 0):
            raise ValueError(
                f"the replicas need {amount:g} {kind}s, and Ray has {there.get(kind, 0):g}: ask for fewer replicas"
            )


def _wait_until_healthy(replicas: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        state = ray_serve.status().applications["retrieval"]
        deployment = state.deployments.get("retrieval")
        running = deployment.replica_states.get("RUNNING", 0) if deployment else 0
        if state.status == "RUNNING" and running == replicas:
            return
        if state.status == "DEPLOY_FAILED" or time.monotonic() > deadline:
            told = deployment.message if deployment else state.message
            raise ValueError(f"{running} of {replicas} replicas run; Ray Serve says: {_cause(told) or state.status}")
        time.sleep(0.2)


def _cause(message: str) -> str:
    """The last line of the traceback in Serve's message: the error itself."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _health(ready: str) -> dict[str, Any]:
    """What the address says of itself: a Serve that ran here before keeps its own address, and then this one is dead."""
    url = ready.split()[1].replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url.removesuffix("/retrieve") + "/health", timeout=_ANSWER_TIMEOUT_S) as reply:
        card: dict[str, Any] = json.load(reply)
    return card
