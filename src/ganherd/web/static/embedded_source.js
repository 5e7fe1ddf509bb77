// Numbers and pictures that are embedded in a page, behind the interface of `ServerSource`: such a page works without a server.

export class EmbeddedSource {
  /** `runs` are the runs of the page, as `web/embedded_run.py` describes them. */
  constructor(runs) { this.byId = new Map(runs.map((run) => [run.facts.id, run])); }

  async run(id) { return this.byId.get(id).facts; }
  async sprites(id) { return this.byId.get(id).facts.sprites; }
  async events(id) { return { events: this.byId.get(id).events, offset: 0, more: false, restarted: false, damaged: 0 }; }
  follow() { return () => {}; }

  /** Return one figure over steps: lines of members if they are asked for and embedded, otherwise the band over all. */
  async metrics(id, { figures, members = null, first = -Infinity, last = Infinity }) {
    const { course, lines, bands } = this.byId.get(id);
    const table = course[figures] ?? (members !== null && lines ? lines : bands);
    const at = table.step.map((_, i) => i).filter((i) => table.step[i] >= first && table.step[i] <= last);
    const rows = (values) => at.map((i) => values[i]);
    const column = table.figures[figures], out = {};
    if (column?.all) out.all = rows(column.all);
    else if (column?.band) out.band = column.band.map(rows);
    else if (column) {
      const chosen = members === null || members === "all" ? column.members : String(members).split(",").map(Number);
      Object.assign(out, { members: chosen, lines: chosen.map((member) => rows(column.lines[member])) });
    }
    return { offset: 0, restarted: false, damaged: 0, step: rows(table.step), seconds: rows(table.seconds), figures: { [figures]: column ? out : { all: [] } } };
  }

  /** Return figures of members in the last embedded record up to a step that has them. */
  async record(id, { step, figures, members = null }) {
    const table = this.byId.get(id).lines, values = {};
    for (const name of table ? figures.split(",") : []) {
      const lines = table.figures[name]?.lines;
      if (!lines) continue;
      let at = table.step.findLastIndex((each) => each <= step);
      while (at >= 0 && lines.every((line) => line[at] === null)) at -= 1; // not every record has every figure
      if (at >= 0) values[name] = (members === null ? lines : [lines[members]]).map((line) => line?.[at] ?? null);
    }
    return { step, figures: values };
  }

  /** Return the sheet of a step: an image for pictures, lists of points otherwise. */
  async sheet(id, step, kind) {
    const sheet = this.byId.get(id).sheets[step];
    if (kind === "points") return sheet;
    return createImageBitmap(new Blob([Uint8Array.from(atob(sheet), (letter) => letter.charCodeAt(0))], { type: "image/webp" }));
  }
}
