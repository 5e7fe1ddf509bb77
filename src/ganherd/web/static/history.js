// What happened to members up to a step: alarms, repairs, swaps of discriminators, and generators that spread over a grid.

import { count, num } from "./dom.js";

export const KINDS = ["swap", "tournament", "replacement", "evaluation", "alarm", "calm", "nan", "diverged", "repair", "converged", "lost"];
const BEGIN = ["alarm", "nan", "diverged"];
const words = (name) => String(name ?? "").replaceAll("_", " ");
const WHY = {
  collapse: "Its samples hardly vary.",
  cycling: "Its samples return to earlier ones.",
  dead_critic: "Its discriminator separates real from generated no better than chance.",
  memorising: "Its samples are copies of training images.",
  nan: "Its weights or losses are no longer finite.",
  diverged: "Its loss is beyond all bounds.",
};

export class History {
  constructor(members) {
    this.members = members;
    this.events = [];
    this.offset = 0;
  }

  /** Read the events that were written since the last call. */
  async update(source, run) {
    for (let page = 0; page < 20; page += 1) {
      const answer = await source.events(run, { offset: this.offset, limit: 5000, kinds: KINDS.join(",") });
      if (answer.restarted) this.events = [];
      this.events.push(...answer.events);
      this.offset = answer.offset;
      if (!answer.more) break;
    }
  }

  /** Return what is true of each member at a step. */
  at(step) {
    const n = this.members;
    const state = {
      alarms: Array.from({ length: n }, () => new Map()),
      born: new Array(n).fill(0),
      rates: new Map(), // learning rates of generators that a repair has changed
      partner: Array.from({ length: n }, (_, i) => i), // the member whose discriminator each one has
      founder: Array.from({ length: n }, (_, i) => i), // the member whose generator each one descends from
      pairs: [],
      swapped: null,
      moves: [], // [from, to, step] of generators
    };
    let won = state.founder.map((_, i) => i);
    for (const event of this.events) {
      if (event.step > step) break;
      const member = event.member;
      if (BEGIN.includes(event.event)) state.alarms[member]?.set(event.what ?? event.event, event);
      else if (event.event === "calm") state.alarms[member]?.delete(event.what);
      else if (event.event === "repair" && state.alarms[member]) {
        state.alarms[member].clear();
        state.born[member] = event.step;
        if (typeof event.lr_g === "number") state.rates.set(member, event.lr_g);
      } else if (event.event === "swap") {
        state.pairs = Array.isArray(event.pairs) ? event.pairs.filter((pair) => pair?.every?.((one) => one < n)) : [];
        state.swapped = event.step;
        const row = event.what === "generators" ? state.founder : state.partner;
        for (const [a, b] of state.pairs) [row[a], row[b]] = [row[b], row[a]];
      } else if (event.event === "tournament" && Array.isArray(event.g)) won = event.g;
      else if ((event.event === "replacement" || event.event === "evaluation") && n) {
        const trained = event.event === "replacement" ? won : null;
        const next = state.founder.slice();
        for (let m = 0; m < n; m += 1) {
          const at = event.g_from?.[m] ?? m;
          const from = (event.g_new?.[m] ?? true) ? (trained?.[at] ?? at) : at;
          next[m] = state.founder[from] ?? state.founder[m];
          if (event.g_new?.[m] ?? false) state.born[m] = event.step;
          if (from !== m) state.moves.push([from, m, event.step]);
        }
        state.founder = next;
        won = next.map((_, i) => i);
      }
    }
    return state;
  }

  /** Return the generators from which the generator of a member descends: `{member, step}`, the newest first. */
  ancestors(member, step) {
    const moves = this.at(step).moves;
    const chain = [{ member, step }];
    for (let i = moves.length - 1; i >= 0; i -= 1) {
      const [from, to, at] = moves[i];
      const here = chain[chain.length - 1];
      if (to === here.member && at <= here.step) chain.push({ member: from, step: at, taken: true });
      // moves of one step happen at once: skip the others of this step
      while (i > 0 && moves[i - 1][2] === at && chain[chain.length - 1].step === at) i -= 1;
    }
    return chain;
  }
}

/** Return a sentence about an event, as it concerns a member. */
export function sentenceOf(event, member, name = (m) => `member ${m}`) {
  switch (event.event) {
    case "alarm": return [`Alarm: ${words(event.what)}. ${WHY[event.what] ?? ""}`, true];
    case "nan": return [`Alarm: not a number. ${WHY.nan}`, true];
    case "diverged": return [`Alarm: diverged. ${WHY.diverged}`, true];
    case "calm": return [`The alarm ${words(event.what)} is over.`, false];
    case "repair": {
      const how = { rollback: `It returned to its state of step ${count(event.from_step)} with half the learning rate`, reseed: "It started again with new weights", neighbour: `It took the weights of ${name(event.from_member)}` }[event.policy] ?? `It was repaired (${words(event.policy)})`;
      return [`${how}${event.reason ? ` because of ${words(event.reason)}` : ""}.`, true];
    }
    case "converged": return [`It converged and trains no further (${num(event.before)} → ${num(event.now)}).`, false];
    case "swap": {
      const pair = event.pairs?.[0] ?? [];
      const other = pair[0] === member ? pair[1] : pair[0];
      return [`Swapped ${words(event.what)} with ${name(other)}.`, false];
    }
    case "tournament": return [`Iteration ${event.iteration}: trains ${event.g === member ? "its own generator" : `a copy of the generator of ${name(event.g)}`}${event.d !== undefined ? `, against ${event.d === member ? "its own discriminator" : `the discriminator of ${name(event.d)}`}` : ""}.`, false];
    case "replacement": {
      const whose = event.won === undefined || event.won === member ? "its own generator, trained," : `a trained copy of the generator of ${name(event.won)}`;
      return [`Iteration ${event.iteration}: ${event.g_new ? `${whose} took its place (fitness ${num(event.g_before)} → ${num(event.g_after)})` : "it keeps its old generator"}.`, false];
    }
    case "lost": return ["Its rank was lost; another one continues.", true];
    default: return [words(event.event), false];
  }
}
