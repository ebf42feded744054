"""The retry policy as a table: budgets by class, progress refunds, no progress ends the job."""

from collections import Counter
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefect_bt import codec
from prefect_bt.attempts.retry_overrides import RetryOverrides, validate_budget
from prefect_bt.attempts.retry_policy import (
    MAX_REFUNDS,
    compute_retry_delay,
    decide_retry,
    list_attempts_without_progress,
    parse_checkpoint_name,
)
from prefect_bt.errors import DefinitionError
from prefect_bt.ledger.records import Cause, FailureClass, JobRecord, Outcome, RetryBudget
from prefect_bt.ledger.states import JobState

USER, INFRA, OOM = FailureClass.USER, FailureClass.INFRASTRUCTURE, FailureClass.OUT_OF_MEMORY
DEFAULT = RetryBudget()


def history(*ends: tuple[FailureClass | None, str]) -> list[Outcome]:
    states = [JobState.FAILED if kind else JobState.COMPLETED for kind, _ in ends]
    return [
        Outcome(i, state, failure=kind, newest_checkpoint=name)
        for i, (state, (kind, name)) in enumerate(zip(states, ends, strict=True))
    ]


@pytest.mark.parametrize(
    ("ends", "budget", "checkpointing", "retry"),
    [
        ([(USER, "")], DEFAULT, True, False),
        ([(USER, "")], RetryBudget(user=1), True, True),
        ([(USER, "a"), (USER, "b")], RetryBudget(user=1), True, False),
        ([(INFRA, "")], DEFAULT, True, True),
        ([(INFRA, ""), (INFRA, "")], DEFAULT, True, False),
        ([(INFRA, ""), (INFRA, "")], DEFAULT, False, True),
        ([(INFRA, "")] * 4, DEFAULT, False, False),
        ([(INFRA, name) for name in "abcde"], DEFAULT, True, True),
        ([(INFRA, "a"), (INFRA, "a")], DEFAULT, True, True),
        ([(INFRA, "a"), (INFRA, "a"), (INFRA, "a")], DEFAULT, True, False),
        ([(OOM, "a")], DEFAULT, True, False),
        ([(OOM, "a")], RetryBudget(out_of_memory=1), True, True),
        ([(OOM, "a"), (OOM, "b")], RetryBudget(out_of_memory=1), True, False),
        ([(INFRA, "")] * 3, RetryBudget(without_progress=0), True, True),
        ([(INFRA, "")] * 3, RetryBudget(without_progress=3), True, False),
        ([(INFRA, "")], RetryBudget(without_progress=1), True, False),
        ([(INFRA, "a")], RetryBudget(without_progress=1), True, True),
        ([(INFRA, "a")] * 2, RetryBudget(infrastructure=0), True, False),
        ([(INFRA, "a")], RetryBudget(infrastructure=0), True, False),
        ([(INFRA, "checkpoint-1")], RetryBudget(infrastructure=0), True, True),
        # Each class has its own budget.
        ([(USER, "a"), (INFRA, "b")], RetryBudget(user=1, infrastructure=1), True, True),
        ([(INFRA, ""), (USER, "b"), (INFRA, "")], RetryBudget(1, 2), True, True),
        ([(FailureClass.DEPLOY, "")], RetryBudget(user=9), True, False),
        ([(None, "a")], DEFAULT, True, False),
    ],
)
def test_decision(
    ends: list[tuple[FailureClass | None, str]],
    budget: RetryBudget,
    checkpointing: bool,
    retry: bool,
) -> None:
    decision = decide_retry(history(*ends), budget, checkpointing=checkpointing)
    assert decision.retry is retry, decision.reason


def test_commands_that_succeeded_are_not_run_again() -> None:
    """No budget starts another attempt, also after progress."""
    ends = history((INFRA, key("checkpoint-1")), (INFRA, key("checkpoint-2", 1)))
    ends[-1] = replace(ends[-1], cause=Cause.UPLOAD_FAILED)
    decision = decide_retry(ends, RetryBudget(9, 9, 9, 0), checkpointing=True)
    assert not decision.retry
    assert decision.reason == "the commands succeeded, so they are not run again"


def key(name: str, attempt: int = 0, version: int = 1) -> str:
    return f"training_projects/p/jobs/j/manifests/rank-0/{name}/{attempt:04d}-{version:04d}.json"


def test_the_sentence_that_ends_a_stuck_job() -> None:
    decision = decide_retry(history((INFRA, ""), (INFRA, "")), DEFAULT, checkpointing=True)
    assert decision.reason == ("attempts 0 and 1 failed in a row without a committed checkpoint")
    ends = [(INFRA, key("v0%2Fcheckpoint-40"))] * 4
    three = decide_retry(history(*ends), RetryBudget(without_progress=3), checkpointing=True)
    assert three.reason == (
        "attempts 1, 2 and 3 failed in a row without a newer committed checkpoint than "
        "v0/checkpoint-40"
    )
    once = RetryBudget(without_progress=1)
    one = decide_retry(history((USER, key("c")), (INFRA, key("c"))), once, checkpointing=True)
    assert one.reason == "attempt 1 failed without a newer committed checkpoint than c"


def test_a_refusal_names_the_number_of_allowed_retries() -> None:
    for budget, words in [
        (DEFAULT, "no retry of user failures"),
        (RetryBudget(user=1), "one retry of user failures"),
        (RetryBudget(user=2), "2 retries of user failures"),
    ]:
        ends = [(USER, str(i)) for i in range(budget.user + 1)]
        why = decide_retry(history(*ends), budget, checkpointing=True).reason
        assert why == f"the policy allows {words}"


def test_progress_allows_a_retry_beyond_the_budget() -> None:
    """A person tried again after the budget was used up, and the job gets further again."""
    ends = [(INFRA, key("checkpoint-1"))] * 5
    patient = RetryBudget(without_progress=0)
    assert not decide_retry(history(*ends), patient, checkpointing=True).retry
    further = history(*ends, (INFRA, key("checkpoint-2", 5)))
    decision = decide_retry(further, patient, checkpointing=True)
    assert decision.retry
    assert decision.reason == "there was progress, so this infrastructure failure does not count"


def test_a_job_that_begins_anew_and_writes_the_same_steps_makes_no_progress() -> None:
    """Every attempt commits checkpoint-20 again, as new bytes, and dies in step 25."""
    ends = [(INFRA, key("checkpoint-20", attempt)) for attempt in range(3)]
    decision = decide_retry(history(*ends), DEFAULT, checkpointing=True)
    assert not decision.retry
    assert "attempts 1 and 2" in decision.reason
    patient = RetryBudget(without_progress=0)
    lived = history(*[(INFRA, key("checkpoint-20", attempt)) for attempt in range(5)])
    assert not decide_retry(lived, patient, checkpointing=True).retry, "nor is a budget refunded"
    back = history((INFRA, key("checkpoint-30")), (INFRA, key("checkpoint-10", 1)))
    assert len(list_attempts_without_progress(back)) == 1


def test_names_without_a_step_count_by_their_commits_and_other_series_by_themselves() -> None:
    last = [(INFRA, key("last", attempt)) for attempt in range(5)]
    assert list_attempts_without_progress(history(*last)) == []
    phases = [(INFRA, key("sft%2Fcheckpoint-100")), (INFRA, key("dpo%2Fcheckpoint-10", 1))]
    assert list_attempts_without_progress(history(*phases)) == []


def test_the_name_in_a_manifests_key() -> None:
    assert parse_checkpoint_name(Outcome(0, JobState.FAILED)) == ""
    ended = Outcome(0, JobState.FAILED, newest_checkpoint=key("v0-1%2Fcheckpoint-10"))
    assert parse_checkpoint_name(ended) == "v0-1/checkpoint-10"


# -- long lives of jobs ------------------------------------------------------------------------

Ends = list[tuple[FailureClass, bool]]
ENDS = st.lists(st.tuples(st.sampled_from([USER, INFRA, OOM]), st.booleans()), max_size=200)
BUDGETS = st.builds(
    RetryBudget,
    user=st.integers(0, 4),
    infrastructure=st.integers(0, 4),
    out_of_memory=st.integers(0, 4),
    without_progress=st.integers(0, 5),
)


def live(ends: Ends, budget: RetryBudget, *, checkpointing: bool) -> list[Outcome]:
    """The attempts of a job whose policy is asked after each; `ends`: class, and any progress."""
    lived: list[Outcome] = []
    step = 0
    for attempt, (failure, progress) in enumerate(ends):
        step += progress
        newest = key(f"checkpoint-{step}", attempt) if step else ""
        lived.append(Outcome(attempt, JobState.FAILED, failure=failure, newest_checkpoint=newest))
        if not decide_retry(lived, budget, checkpointing=checkpointing).retry:
            break
    return lived


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(ENDS, BUDGETS, st.booleans())
def test_a_job_ends_by_the_rules(ends: Ends, budget: RetryBudget, checkpointing: bool) -> None:
    """A second account of the rules, counted forward instead of looked up in the past."""
    left = Counter({USER: budget.user, INFRA: budget.infrastructure, OOM: budget.out_of_memory})
    in_a_row = expected = refunds = 0
    for failure, progress in ends:
        expected += 1
        in_a_row = 0 if progress else in_a_row + 1
        free = failure is INFRA and progress and refunds < MAX_REFUNDS
        refunds += free
        left[failure] -= not free
        limit = budget.without_progress
        if left[failure] < 0 or (checkpointing and limit and in_a_row >= limit):
            break
    lived = live(ends, budget, checkpointing=checkpointing)
    assert len(lived) == expected


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), BUDGETS)
@example(250, RetryBudget(infrastructure=0, without_progress=1))
@example(250, RetryBudget(infrastructure=4, without_progress=1))
def test_new_steps_allow_a_bounded_number_of_node_deaths(deaths: int, budget: RetryBudget) -> None:
    longest = MAX_REFUNDS + budget.infrastructure + 1
    lived = live([(INFRA, True)] * deaths, budget, checkpointing=True)
    assert len(lived) == min(deaths, longest)


SAME_WORK = [
    "last",
    "v{attempt}-0901/checkpoint-10",
    "run-{attempt}/epoch=3-step=30",
    "{attempt}",
]
"""Names of the newest checkpoint of an attempt that starts from the beginning each time."""


@pytest.mark.parametrize("allowed", [0, 1, 3])
@pytest.mark.parametrize("name", SAME_WORK)
def test_commits_without_a_higher_step_refund_as_many_attempts_as_the_budget(
    name: str, allowed: int
) -> None:
    budget = RetryBudget(infrastructure=allowed)
    ends: list[tuple[FailureClass | None, str]] = []
    while decide_retry(
        history(*ends, (INFRA, key(quote(name.format(attempt=len(ends)), safe=""), len(ends)))),
        budget,
        checkpointing=True,
    ).retry:
        ends.append((INFRA, key(quote(name.format(attempt=len(ends)), safe=""), len(ends))))
        assert len(ends) < 20, "it runs for ever"
    first_step_is_new = "checkpoint" in name or "step" in name
    assert len(ends) == 2 * allowed + first_step_is_new


def test_a_higher_step_refunds_attempts_without_a_step_again() -> None:
    """The newest checkpoint is `last` three times, and then a step, over and over."""
    names = [f"checkpoint-{n}" if n % 4 == 0 else "last" for n in range(4, 64)]
    ends = [(INFRA, key(name, attempt)) for attempt, name in enumerate(names)]
    for end in range(1, len(ends) + 1):
        decision = decide_retry(history(*ends[:end]), DEFAULT, checkpointing=True)
        assert decision.reason.startswith("there was progress")


def test_a_refusal_has_the_reason_why_progress_counts() -> None:
    last = [(INFRA, key("last", attempt)) for attempt in range(7)]
    said = decide_retry(history(*last), DEFAULT, checkpointing=True).reason
    assert said == (
        "the policy allows 3 retries of infrastructure failures, and new commits without a higher "
        "step count after as many attempts in a row"
    )
    steps = [(INFRA, key(f"checkpoint-{n}", n)) for n in range(MAX_REFUNDS + 1)]
    none = RetryBudget(infrastructure=0)
    assert decide_retry(history(*steps[:-1]), none, checkpointing=True).retry
    assert decide_retry(history(*steps), none, checkpointing=True).reason == (
        "the policy allows no retry of infrastructure failures, and 100 attempts with progress did "
        "not count, the maximum"
    )


@settings(max_examples=100, deadline=None)
@given(ENDS, BUDGETS, st.booleans())
def test_budgets_bound_the_attempts(ends: Ends, budget: RetryBudget, checkpointing: bool) -> None:
    lived = live(ends, budget, checkpointing=checkpointing)
    free = sum(failure is INFRA and progress for failure, progress in ends[: len(lived)])
    assert len(lived) <= free + budget.user + budget.infrastructure + budget.out_of_memory + 1


# -- back-off ----------------------------------------------------------------------------------

STEADY = RetryBudget(infrastructure=99, without_progress=0, jitter=0)


def test_delays_grow_to_the_ceiling_and_progress_begins_them_anew() -> None:
    dead = history(*[(INFRA, "")] * 7)
    delays = [compute_retry_delay(dead[: n + 1], STEADY, job_id="abc1234") for n in range(7)]
    assert delays == [1, 2, 4, 8, 16, 30, 30]
    progressed = [*dead, replace(dead[0], attempt=7, newest_checkpoint=key("checkpoint-1"))]
    assert compute_retry_delay(progressed, STEADY, job_id="abc1234") == 1
    assert compute_retry_delay([], STEADY, job_id="abc1234") == 0
    assert compute_retry_delay(history((None, "")), STEADY, job_id="abc1234") == 0


def test_a_factor_of_one_and_delays_of_zero() -> None:
    dead = history(*[(INFRA, "")] * 5)
    assert compute_retry_delay(dead, replace(STEADY, factor=1.0), job_id="x") == 1
    none = replace(STEADY, first_delay=0.0, longest_delay=0.0)
    assert compute_retry_delay(dead, none, job_id="x") == 0
    long = history(*[(INFRA, "")] * 2000)
    assert compute_retry_delay(long, replace(STEADY, factor=10.0), job_id="x") == 30


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.text(min_size=1), st.integers(1, 40), st.floats(0, 1))
def test_jitter_shortens_and_is_reproducible(job_id: str, deaths: int, jitter: float) -> None:
    dead = history(*[(INFRA, "")] * deaths)
    policy = replace(STEADY, jitter=jitter)
    full = compute_retry_delay(dead, STEADY, job_id="")
    job_id = job_id.encode("utf-8", "replace").decode()
    delay = compute_retry_delay(dead, policy, job_id=job_id)
    assert full * (1 - jitter) <= delay <= full
    assert delay == compute_retry_delay(dead, policy, job_id=job_id)


def test_jobs_do_not_come_back_at_once() -> None:
    policy = RetryBudget(first_delay=100, longest_delay=100, jitter=1)
    dead = history((INFRA, ""))
    delays = [compute_retry_delay(dead, policy, job_id=f"job{n:04d}") for n in range(200)]
    assert len(set(delays)) == 200
    assert min(delays) < 10
    assert max(delays) > 90


# -- what is asked for -------------------------------------------------------------------------


def test_choices_replace_the_values_of_a_policy() -> None:
    base = RetryBudget()
    assert RetryOverrides().apply_to(base) == base
    assert RetryOverrides(user=2).apply_to(base) == RetryBudget(2, 3, 2)
    assert RetryOverrides(user=5).apply_to(base) == RetryBudget(5, 5, 5)
    said = RetryOverrides(user=5, infrastructure=0, out_of_memory=1)
    assert said.apply_to(base) == RetryBudget(5, 0, 1)
    assert RetryOverrides(user=0).apply_to(RetryBudget(4, 9, 2)) == RetryBudget(0, 9, 2)
    assert RetryOverrides(first_delay=60.0).apply_to(base).longest_delay == 60
    assert RetryOverrides(first_delay=5.0).apply_to(base).longest_delay == 30


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        (RetryOverrides(user=-1), "retries is -1. Give 0 or more."),
        (RetryOverrides(infrastructure=-2), "infrastructure_retries is -2. Give 0 or more."),
        (RetryOverrides(out_of_memory=-1), "out_of_memory_retries is -1. Give 0 or more."),
        (RetryOverrides(without_progress=-1), "without_progress is -1. Give 0 or more."),
        (RetryOverrides(first_delay=-0.5), "retry_delay is -0.5. Give seconds, 0 or more."),
        (RetryOverrides(first_delay=float("nan")), "retry_delay is nan. Give a number."),
        (RetryOverrides(longest_delay=float("inf")), "longest_retry_delay is inf. Give a number."),
        (RetryOverrides(factor=0.5), "retry_factor is 0.5. Give 1 or more: delays do not shrink."),
        (RetryOverrides(jitter=1.5), "retry_jitter is 1.5. Give the part of a delay, 0 to 1."),
        (
            RetryOverrides(first_delay=9.0, longest_delay=3.0),
            "longest_retry_delay is 3. Give the first delay, 9, or more.",
        ),
    ],
)
def test_a_number_that_makes_no_sense_is_named(choices: RetryOverrides, said: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        choices.apply_to(RetryBudget())
    assert str(refused.value) == said


@settings(deadline=None)
@given(BUDGETS)
@example(RetryBudget(0, 0, 0, 0, first_delay=0.0, factor=1.0, longest_delay=0.0, jitter=1.0))
def test_a_sound_policy_is_kept_as_it_is(budget: RetryBudget) -> None:
    assert validate_budget(budget) is budget
    assert codec.decode(RetryBudget, codec.encode(budget)) == budget


def test_jobs_of_older_releases_have_todays_policy() -> None:
    old = codec.encode(JobRecord("abc1234", "job-1", "p", "p", 1.0, definition={}))
    old["retries"] = {"user": 2, "infrastructure": 3, "out_of_memory": 0}
    assert codec.decode(JobRecord, old).retries == RetryBudget(user=2)
