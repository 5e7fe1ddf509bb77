"""Join the verdicts on a mixture and on its members to one verdict on the herd, which names the members that are not good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from ganherd.runs.results.verdict_record import MemberVerdict, VerdictRecord, Word
from ganherd.scoring.verdicts.evidence import Evidence
from ganherd.scoring.verdicts.judgement import Course, Judged, judge
from ganherd.scoring.verdicts.measurement import Part
from ganherd.util.errors import few

_SMALL = 0.05  # share of an average member below which a member does not count: the mixture hardly uses it
_FINE: tuple[Word, ...] = ("good", "cannot be judged")


def judge_herd(
    herd: Evidence,
    parts: Sequence[Part],
    courses: Sequence[Course] = (),
    *,
    steps: int | None = None,
    network: str = "",
    replica: int = 0,
) -> VerdictRecord:
    """Return the verdict on a herd and on each of its parts.

    Args:
        herd: The evidence about the mixture.
        parts: The evidence about the members, and about the classes if generators take the label.
        courses: What the records say about each member of this replica; empty if there are none.
        steps: The step of the mixture.
        network: The name of the network of the features.
    """
    whole = Course(steps).joined(courses)
    members = []
    for part in parts:
        course = courses[part.member] if part.member is not None and part.member < len(courses) else whole
        one = judge(part.evidence, course, shares_data=part.shares_data)
        members.append(
            MemberVerdict(
                name=part.name,
                member=part.member,
                replica=replica,
                weight=part.weight,
                word=one.word,
                reason=one.reason,
                try_next=one.try_next,
                evidence=known(part.evidence),
            )
        )
    used = _used(members)
    joined = _joined(judge(herd, whole), used, any(part.shares_data for part in parts), len(members))
    return VerdictRecord(
        word=joined.word,
        reason=joined.reason,
        try_next=joined.try_next,
        step=steps,
        network=network,
        evidence=known(herd),
        members=members,
    )


def _used(members: Sequence[MemberVerdict]) -> list[MemberVerdict]:
    """Return the members that the mixture gives a noticeable weight, and all classes (which have no weight)."""
    count = sum(one.member is not None for one in members)
    return [one for one in members if one.weight is None or one.weight * count >= _SMALL]


def _joined(herd: Judged, members: Sequence[MemberVerdict], share_data: bool, total: int) -> Judged:
    """Return the verdict on the herd: that on its mixture, unless members that it uses are not good.

    The word of the members that are not good says more than that of the mixture, which mixes them with the others. If the
    members share the data, the mixture says more in two cases: if no member is good, and if members are merely undertrained
    and the mixture has a definite failure, such as data that none of them reaches.
    """
    bad = [one for one in members if one.word not in _FINE]
    if not bad:
        return _with_unknown(herd, members)
    word, named = _leading_word(bad, members), _named(bad, members, total)
    mixture_says_more = share_data and (len(bad) == len(members) or word == "undertrained")
    if herd.word not in _FINE and (herd.word == word or mixture_says_more):
        return herd if len(members) == 1 else Judged(herd.word, f"{herd.reason}; {named}", herd.try_next)
    first = next(one for one in bad if one.word == word)
    if len(members) == 1:
        return Judged(first.word, first.reason, first.try_next)
    owner = "" if len(bad) == 1 else f"; of {first.name}"
    return Judged(word, f"{named}{owner}: {first.reason}", first.try_next)


def _leading_word(bad: Sequence[MemberVerdict], members: Sequence[MemberVerdict]) -> Word:
    """Return the word for several members that are not good: the most frequent definite failure.

    "undertrained" is no definite failure: it leads only if there is no other word, or if more than half of all members are.
    """
    counts = Counter(one.word for one in bad)
    definite = [(word, count) for word, count in counts.most_common() if word != "undertrained"]
    if not definite or 2 * counts["undertrained"] > len(members):
        return "undertrained"
    return definite[0][0]


def _named(bad: Sequence[MemberVerdict], members: Sequence[MemberVerdict], total: int) -> str:
    """Return which of the members that the mixture uses are not good, in words.

    Args:
        total: The number of all members, with those that the mixture does not use.

    >>> one = MemberVerdict(name="member 3 (cat)", member=3, word="collapsed", reason="")
    >>> _named([one], [one] * 10, 10)
    '1 of 10 members is not good: member 3 (cat) collapsed'
    >>> _named([one], [one] * 4, 9)
    '1 of the 4 members that the mixture uses is not good: member 3 (cat) collapsed'
    >>> _named([one] * 10, [one] * 10, 10)
    'all 10 members are collapsed'
    >>> others = [MemberVerdict(name=f"member {m}", member=m, word="undertrained", reason="") for m in (6, 8)]
    >>> unknown = MemberVerdict(name="member 9", member=9, word="cannot be judged", reason="")
    >>> _named([one, *others], [one, *others, unknown], 4)
    '3 of 4 members are not good: member 3 (cat) collapsed; member 6 and member 8 undertrained; 1 cannot be judged'
    """
    by_word: dict[str, list[str]] = {}
    for one in bad:
        by_word.setdefault(one.word, []).append(one.name)
    each = [f"{_listed(names)} {word}" for word, names in by_word.items()]
    if unknown := sum(one.word == "cannot be judged" for one in members):
        each.append(f"{unknown} cannot be judged")
    what = "members" if all(one.member is not None for one in members) else "members and classes"
    of, article = f"{len(members)} {what}", ""
    if len(members) < total:
        of, article = f"{of} that the mixture uses", "the "
    if len(bad) == len(members) and len(by_word) == 1:
        return f"all {of} are {bad[0].word}"
    return f"{len(bad)} of {article}{of} {'is' if len(bad) == 1 else 'are'} not good: {'; '.join(each)}"


def _listed(names: Sequence[str]) -> str:
    """Return up to three names joined by commas and "and"; of more names, the first three and how many there are more."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if 1 < len(names) <= 3 else few(names, 3)


def _with_unknown(herd: Judged, members: Sequence[MemberVerdict]) -> Judged:
    """Add to the verdict on a mixture how many of its members could not be judged."""
    unknown = sum(one.word == "cannot be judged" for one in members)
    if herd.word != "good" or not unknown:
        return herd
    return Judged("good", f"{herd.reason}; {unknown} of {len(members)} members cannot be judged one by one")


def known(evidence: Evidence) -> dict[str, float]:
    """Return the evidence as JSON, rounded, without what could not be measured."""
    values = {name: value for name, value in asdict(evidence).items() if value is not None}
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}


def join_replicas(records: Sequence[VerdictRecord], seeds: Sequence[int]) -> VerdictRecord:
    """Return one verdict on all replicas of a herd: good only if all are; it names the seeds that are not."""
    if len(records) == 1:
        return records[0]
    first = records[0]
    members = [one for record in records for one in record.members]
    bad = [(seed, record) for seed, record in zip(seeds, records, strict=True) if record.word not in _FINE]
    if not bad:
        word: Word = "good" if all(record.word == "good" for record in records) else "cannot be judged"
        chosen = next(record for record in records if record.word == word)
        reason = (
            f"all {len(records)} seeds are good; of seed {seeds[0]}: {chosen.reason}"
            if word == "good"
            else chosen.reason
        )
        return first.model_copy(
            update={"word": word, "reason": reason, "try_next": chosen.try_next, "members": members}
        )
    word, _ = Counter(record.word for _, record in bad).most_common(1)[0]
    seed, chosen = next((seed, record) for seed, record in bad if record.word == word)
    named = few([f"{seed} ({record.word})" for seed, record in bad], 5)
    reason = f"{len(bad)} of {len(records)} seeds are not good: {named}; of seed {seed}: {chosen.reason}"
    return chosen.model_copy(update={"word": word, "reason": reason, "members": members})
