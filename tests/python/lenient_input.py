"""What schemathesis must know of the service's leniency, which no schema can say.

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
    """Nobody waits for what does not come: a body that may wait asks for what is there."""
    if isinstance(case.body, dict):
        wait_sec = case.body.get("wait_sec")
        if isinstance(wait_sec, (int, float)) and 0 < wait_sec <= 30:
            case.body["wait_sec"] = 0
