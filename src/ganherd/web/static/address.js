// The address of what is shown: the part after #, with a query, so that a link leads others to the same view, step and colour.

/** Return the parts of the address: view, run, rest, and the query. */
export function place() {
  const [path, query] = decodeURI(location.hash.replace(/^#\/?/, "")).split("?");
  const words = path.split("/").filter(Boolean);
  return { words, query: new URLSearchParams(query ?? "") };
}

/** Change the query of the address without a new visit. */
export function remember(changes) {
  const { words, query } = place();
  for (const [key, value] of Object.entries(changes)) value === null ? query.delete(key) : query.set(key, value);
  const text = query.toString();
  history.replaceState(null, "", `#/${words.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`);
}
