"""The section about swaps: how long each generator trained with each discriminator."""

from __future__ import annotations

from markupsafe import Markup

from ganherd.report.gather import RunStory
from ganherd.report.templating import count, number, render, svg


def meetings(story: RunStory) -> Markup:
    swaps = [e for e in story.events if e.get("event") == "swap"]
    if not swaps or not story.members:
        return Markup()
    from ganherd.strategies.gap.gap import count_meetings
    from ganherd.viz.meeting_map import draw_who_met

    each = sum(m.replica == 0 for m in story.members)
    steps = story.metrics[-1].get("step") if story.metrics else None
    counts = count_meetings(story.events, len(story.members), steps)[:each, :each]  # replicas never meet
    what = str(swaps[0].get("what", "nets"))
    text = f"{count(len(swaps), 'swap').capitalize()} of {what}, from step {number(swaps[0].get('step'))} to "
    text += f"{number(swaps[-1].get('step'))}. Both kinds of nets are named after the slot in which they began"
    text += "; of the first replica." if each < len(story.members) else "."
    figures = [(svg(draw_who_met(counts), "met"), "points")]
    return render("charts", title="Who met whom", caption=text, figures=figures, cls="")
