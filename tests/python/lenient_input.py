"""What schemathesis must know and no schema can say: the service's leniency, and fields that bind each other.

Balsam's clients send a number where a text belongs, a text where a number does, and `59.97` minutes; Copal reads
them as they are meant. So a value of the wrong type is no bad request by itself: `api/bad_input.rs` and
`api/wire.rs` say one by one which are taken and which are refused.
"""

import schemathesis
from schemathesis.core.mutations import OperatorKind
from schemathesis.generation.meta import CoverageScenario


@schemathesis.hook
def filter_case(context, case):
    data = case.meta.phase.data if case.meta else None
    if getattr(data, "scenario", None) == CoverageScenario.INCORRECT_TYPE:
        return False
    return all(mutation.operator != OperatorKind.CHANGE_TYPE for mutation in getattr(data, "mutations", ()))


@schemathesis.hook
def before_call(context, case, kwargs):
    """Nobody waits for what does not come, and what is meant to be good is made so where fields bind each other."""
    body = case.body
    if not isinstance(body, dict):
        return
    wait_sec = body.get("wait_sec")
    if isinstance(wait_sec, (int, float)) and 0 < wait_sec <= 30:
        body["wait_sec"] = 0
    if not case.meta or not case.meta.generation.mode.is_positive:
        return
    partitions = body.get("partitions")
    if isinstance(partitions, list) and partitions:
        # They share the BatchJob's nodes out.
        body["num_nodes"] = sum(partition["num_nodes"] for partition in partitions)
    if case.path == "/job-arrays/":
        # Jobs of one folder would be in each other's way: there is only one. A limit is that of a new array.
        body["last"] = body.get("first", 0)
        body.pop("array_id", None)
    if case.path == "/apps/{id}":
        # It stays one whose Jobs may have any parameters.
        body.pop("command", None)
