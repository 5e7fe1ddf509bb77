// Where the numbers and pictures come from. Views know only this interface, so that a page without a server can offer another one.

const address = (path, query) => {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
};

export class ServerSource {
  /** Return JSON, or raise an error with the server's sentence. */
  async json(path, query, signal) {
    const answer = await fetch(address(path, query), { signal });
    if (!answer.ok) throw new Error(await sentence(answer));
    return answer.json();
  }

  runs() { return this.json("/api/runs").then((answer) => answer.runs); }
  run(id) { return this.json(`/api/runs/${encodeURIComponent(id)}`); }
  scores(id) { return this.json(`/api/runs/${encodeURIComponent(id)}/scores`); }
  ranks(id) { return this.json(`/api/runs/${encodeURIComponent(id)}/ranks`); }
  sprites(id) { return this.json(`/api/runs/${encodeURIComponent(id)}/sprites`); }
  metrics(id, query, signal) { return this.json(`/api/runs/${encodeURIComponent(id)}/metrics`, query, signal); }
  record(id, query, signal) { return this.json(`/api/runs/${encodeURIComponent(id)}/record`, query, signal); }
  events(id, query) { return this.json(`/api/runs/${encodeURIComponent(id)}/events`, query); }
  mixture(id) { return this.json(`/api/runs/${encodeURIComponent(id)}/mixture`); }
  samples(id, query, signal) { return this.json(`/api/runs/${encodeURIComponent(id)}/samples`, query, signal); }
  walk(id, query, signal) { return this.json(`/api/runs/${encodeURIComponent(id)}/walk`, query, signal); }

  pictureUrl(id) { return `/api/runs/${encodeURIComponent(id)}/picture`; }
  downloadUrl(id, kind, query) { return address(`/api/runs/${encodeURIComponent(id)}/samples.${kind}`, query); }

  /** Return the sheet of a step: an image for pictures, lists of points otherwise. */
  async sheet(id, step, kind) {
    const answer = await fetch(`/api/runs/${encodeURIComponent(id)}/sprites/${step}`);
    if (!answer.ok) throw new Error(await sentence(answer));
    return kind === "points" ? answer.json() : createImageBitmap(await answer.blob());
  }

  /** Call back with the state of each run whenever one changes; without ids, when the list of runs does. Return how to stop. */
  follow(ids, onchange) {
    const stream = new EventSource(address("/api/live", { runs: ids.join(",") }));
    stream.addEventListener("change", (event) => onchange(JSON.parse(event.data)));
    return () => stream.close();
  }
}

async function sentence(answer) {
  try {
    return (await answer.json()).detail ?? `The server answered ${answer.status}.`;
  } catch {
    return `The server answered ${answer.status}.`;
  }
}
