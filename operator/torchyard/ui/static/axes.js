// Axes of curves: steps, steps from the first one, or seconds. Metrics have steps only; the time of one lies between the
// begin and the end of the newest round that made it.

export const AXES = { step: "step", relative: "steps from the first", trained: "time trained", wall: "wall time" };

/** Rounds as parts of an axis of time. A clock that was set back does not turn the axis around. */
function parts(rounds, mode, last, now) {
  const found = [];
  let passed = 0, before = null, origin = null;
  for (const [start, end, begin, finish] of rounds) {
    if (begin === null || begin === undefined) continue;
    const from = Math.max(begin, before ?? begin);
    origin ??= from;
    const to = Math.max(from, finish ?? now);
    found.push({ start, end: Math.max(end, start), at: mode === "wall" ? from - origin : passed, seconds: to - from, open: !finish });
    passed += to - from;
    before = to;
  }
  const newest = found.at(-1);
  if (newest?.open && newest.end <= newest.start) newest.end = Math.max(newest.end, last);
  return found;
}

/**
 * A function from a step to its place on the axis.
 * @param rounds of the job: [first step, last step, begin, end], times in seconds
 * @param curve columns of buckets
 */
export function axisOf(mode, rounds, curve, now = Date.now() / 1000) {
  const first = curve[0][0] ?? 0;
  if (mode === "relative") return (step) => step - first;
  if (mode !== "trained" && mode !== "wall") return (step) => step;
  const known = parts(rounds, mode, curve[1].at(-1) ?? 0, now);
  if (!known.length) return (step) => step;
  return (step) => {
    const part = known.findLast((each) => step > each.start && step <= each.end) ?? known.findLast((each) => step > each.start) ?? known[0];
    const share = part.end > part.start ? Math.min(1, Math.max(0, (step - part.start) / (part.end - part.start))) : 0;
    return part.at + share * part.seconds;
  };
}

export function isTime(mode, rounds) {
  return (mode === "trained" || mode === "wall") && rounds.some(([, , begin]) => begin !== null);
}

const AFTER = 1e-3; // the step from which a round resumed was made by the one before

/** Steps at which the rounds but the first one began. */
export function starts(rounds) {
  return rounds.slice(1).map(([start]) => start + AFTER);
}

/** Steps that were trained again, as [from, to]: a round began before the end of the one before. */
export function repeats(rounds) {
  return rounds.slice(1).flatMap(([start], place) => (rounds[place][1] > start ? [[start + AFTER, rounds[place][1]]] : []));
}
