// The dispatcher's API, with the admin token that the user typed, if any.

const KEY = "sits-admin-token";
const LONGEST_MS = 10_000;

/** What the dispatcher answered instead: `status` 0 = it did not answer at all. */
export class Refused extends Error {
  constructor(status, error, advice) {
    super(error);
    this.status = status;
    this.advice = advice;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

export async function call(path, { method = "GET", query = {} } = {}) {
  const parameters = new URLSearchParams(query).toString();
  const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  const url = parameters ? `${path}?${parameters}` : path;
  let answer;
  try {
    answer = await fetch(url, { method, headers, cache: "no-store", signal: AbortSignal.timeout(LONGEST_MS) });
  } catch {
    throw new Refused(0, "the dispatcher does not answer", "is it running?");
  }
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, problem.error ?? answer.statusText, problem.do ?? "");
}
