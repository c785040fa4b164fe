// What can have reached a layer group, computed again from an attestation's own routes and domains.

export const groupsOf = (route) => [
  ...Object.keys(route.weights),
  ...(route.adapter ? [`adapter:${route.adapter.name}`] : []),
];

// The routes that a corpus's rows may take: its own, those of later phases, then its fallback's.
export function everyRoute({ route, fallback }) {
  const { phases = [], ...own } = route;
  const later = phases.map(({ weights }) => ({ ...own, weights }));
  return [own, ...later, ...(fallback ? [fallback.route] : [])];
}

// The least fixpoint of `govray/governance/attestation/coverage.py`, over what the attestation states.
export function checkTaint(document) {
  const base = document.groups.map((group) => group.group);
  const excluded = new Set(document.plan.excluded);
  const read = document.corpora.filter((each) => !excluded.has(each.corpus));
  const groups = document.taint.map((each) => each.group);
  const routes = document.corpora.flatMap(everyRoute);
  const adapters = routes.flatMap((route) => groupsOf(route).filter((g) => !base.includes(g)));
  if ([...groups].sort().join("\n") !== [...base, ...new Set(adapters)].sort().join("\n")) {
    throw new Error("taint: a layer group is missing or added");
  }
  const direct = new Map(groups.map((group) => [group, new Set()]));
  const sources = new Map(groups.map((group) => [group, new Set()]));
  const seen = new Set();
  for (const [corpus, route] of read.flatMap((each) => everyRoute(each).map((r) => [each.corpus, r]))) {
    const reached = groupsOf(route);
    for (const group of reached) direct.get(group).add(corpus);
    if (seen.has(reached.join("\n"))) continue;
    seen.add(reached.join("\n"));
    const forward = [...base, ...reached.filter((group) => !base.includes(group))];
    for (const group of reached) for (const other of forward) sources.get(group).add(other);
  }
  for (const domain of document.domains) {
    for (const group of domain) for (const other of domain) sources.get(group)?.add(other);
  }
  const current = new Map(
    groups.map((group) => [group, new Set([...direct.get(group), ...(document.pretrained[group] ?? [])])]),
  );
  for (let grown = true; grown; ) {
    grown = false;
    for (const group of groups) {
      const mine = current.get(group);
      const before = mine.size;
      for (const other of sources.get(group)) for (const each of current.get(other)) mine.add(each);
      grown ||= mine.size > before;
    }
  }
  for (const { group, direct: near, transitive } of document.taint) {
    const same = (stated, found) => stated.join("\n") === [...found].sort().join("\n");
    if (!same(near, direct.get(group)) || !same(transitive, current.get(group))) {
      throw new Error(`the taint of ${group} does not follow from the routes`);
    }
  }
}
