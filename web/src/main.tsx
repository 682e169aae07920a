// Reads the JSON in the page and shows it: a run, a comparison or, at a server, the list of runs and what goes on.
// Text always becomes text nodes; no data is ever parsed as HTML.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useEvents } from "./chart";
import { CompareView } from "./compare";
import type { Compared, Data, ListedRun, LiveRun } from "./data";
import * as fmt from "./fmt";
import { Badge, Table } from "./parts";
import { RunView } from "./run";
import "./style.css";

const FIRST_RETRY_MS = 1000;
const LONGEST_RETRY_MS = 30_000;
const LIST_EVERY_MS = 5000;
const SILENT_MS = 15_000; // the server sends about once per second

/** The newest answer, since when there was no other, and what the server said instead. */
type News<T> = [news: T | null, lost: Date | null, problem: string];

/** The answer to a question, or each message of a stream as it comes. If the server refuses, an error with its line,
 * whose cause is the status of the answer. */
async function* messages<T>(address: string, signal: AbortSignal, heard: () => void): AsyncGenerator<T> {
  const answer = await fetch(address, { cache: "no-store", signal });
  if (!answer.ok) {
    const said = await answer.json().then(
      (body: { error?: string }) => body.error,
      () => undefined,
    );
    const line = answer.status === 404 ? "There is no such run." : (said ?? `The server answered ${answer.status}.`);
    throw new Error(line, { cause: answer.status });
  }
  if (!answer.body || !address.endsWith("/events")) return yield (await answer.json()) as T;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the stream was cut");
    heard();
    const parts = (rest + value).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) if (part.startsWith("data: ")) yield JSON.parse(part.slice(6)) as T;
  }
}

/** What the server says, until `isLast`; after a broken connection the last answer, and since when it is old. */
function useNews<T>(address: string, isLast: (news: T) => boolean): News<T> {
  const [found, setFound] = useState<News<T>>([null, null, ""]);
  useEffect(() => {
    let [asking, timer, wait, isDone] = [new AbortController(), 0, FIRST_RETRY_MS, false];
    const again = (what: () => void, ms: number): void => {
      clearTimeout(timer);
      timer = setTimeout(what, ms);
    };
    const quit = (): void => {
      clearTimeout(timer);
      asking.abort();
      asking = new AbortController();
    };
    const ask = async (): Promise<void> => {
      quit();
      const mine = asking;
      const heard = (): void => again(() => mine.abort(), SILENT_MS);
      heard();
      try {
        for await (const news of messages<T>(address, mine.signal, heard)) {
          if (mine !== asking) return;
          setFound([news, null, ""]);
          wait = FIRST_RETRY_MS;
          isDone = isLast(news);
          if (isDone || document.hidden) return quit();
        }
        again(ask, LIST_EVERY_MS);
      } catch (error) {
        if (mine !== asking) return;
        const { message, cause: status } = error as Error;
        setFound(([old, since]) => [old, since ?? new Date(), status ? message : ""]);
        if (status === 404) return quit(); // trying again is no use
        again(ask, wait);
        wait = Math.min(2 * wait, LONGEST_RETRY_MS);
      }
    };
    // A browser has six connections to a server: only tabs that somebody sees may keep one.
    const turned = (): void => void (document.hidden ? quit() : isDone || ask());
    document.addEventListener("visibilitychange", turned);
    void ask();
    return () => {
      document.removeEventListener("visibilitychange", turned);
      quit();
    };
  }, [address]);
  return found;
}

/** While the server does not answer, or refuses: its own words, or since when there is none. */
function Trouble({ lost, problem }: { lost: Date | null; problem: string }) {
  if (!lost) return null;
  const since = `No connection to TraceML since ${lost.toLocaleTimeString()}. What you see is from then; trying again.`;
  return (
    <p class="banner" role="alert">
      {problem || since}
    </p>
  );
}

const isOver = (run: LiveRun | null): boolean => run?.live.state === "finished" || run?.live.state === "crashed";

function LivePage({ base, name }: { base: string; name: string }) {
  const [run, lost, problem] = useNews<LiveRun>(`${base}api/run/${encodeURIComponent(name)}/events`, isOver);
  const isLost = lost !== null && !isOver(run);
  document.title = run ? `${run.summary.primary_diagnosis.status} · ${name} · TraceML` : `${name} · TraceML`;
  if (!run) return <Waiting lost={lost} problem={problem} />;
  return (
    <>
      {isLost && <Trouble lost={lost} problem={problem} />}
      <RunView summary={run.summary} look={run.live} isLost={isLost} />
    </>
  );
}

function Waiting({ lost, problem }: { lost: Date | null; problem: string }) {
  if (lost && !problem) return <Trouble lost={lost} problem="" />;
  return <p class="loading">{problem || "Loading…"}</p>;
}

function RunList({ base }: { base: string }) {
  const [answer, lost, problem] = useNews<{ runs: ListedRun[] }>(`${base}api/runs`, () => false);
  const [chosen, setChosen] = useState<string[]>([]);
  document.title = "Runs · TraceML";
  const toggle = (name: string): void =>
    setChosen((old) => (old.includes(name) ? old.filter((one) => one !== name) : [...old, name].slice(-2)));
  const [a, b] = chosen;
  const rows = (answer?.runs ?? []).map((run) => [
    <a href={`#/run/${encodeURIComponent(run.name)}`}>{run.name}</a>,
    fmt.moment(run.started_at),
    run.status ?? "",
    run.problem ??
      (run.verdict ? <Badge finding={{ status: run.verdict, severity: run.severity ?? "info", kind: "" }} /> : ""),
    run.step_ms == null ? "" : fmt.ms(run.step_ms),
    run.steps == null ? "" : fmt.count(run.steps),
    run.world_size == null ? "" : fmt.count(run.world_size),
    run.duration_s == null ? "" : fmt.seconds(run.duration_s),
    <input
      type="checkbox"
      aria-label={`Compare ${run.name}`}
      checked={chosen.includes(run.name)}
      onChange={() => toggle(run.name)}
    />,
  ]);
  const head = ["Run", "Started", "Status", "Verdict", "Step Time", "Steps", "Ranks", "Duration", "Compare"];
  return (
    <article>
      <Trouble lost={lost} problem={problem} />
      <div class="run">
        <h1>Runs</h1>
        <span class="facts">{b ? "" : "Choose two runs to compare them."}</span>
        {a && b && (
          <a class="button" href={`#/compare/${encodeURIComponent(a)}/${encodeURIComponent(b)}`}>
            Compare {a} with {b}
          </a>
        )}
      </div>
      <section class="card">
        {answer && !rows.length && <p>There is no run here yet. Start one with: traceml run train.py</p>}
        {!answer && <p class="loading">{lost ? "" : "Loading…"}</p>}
        {!!rows.length && <Table caption="Runs" hideCaption head={head} rows={rows} words={[1, 2, 3]} />}
      </section>
    </article>
  );
}

function ComparePage({ base, a, b }: { base: string; a: string; b: string }) {
  const names = `a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`;
  const [found, lost, problem] = useNews<Compared>(`${base}api/compare?${names}`, () => true);
  document.title = `${a} against ${b} · TraceML`;
  if (found) return <CompareView {...found} />;
  return <Waiting lost={lost} problem={problem} />;
}

/** The words of the address; of a broken one, none. */
function route(): string[] {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return [];
  }
}

function LiveApp({ base }: { base: string }) {
  const [[view, a, b], setRoute] = useState(route());
  useEvents(["hashchange"], () => {
    setRoute(route());
    scrollTo(0, 0);
  });
  if (view === "run" && a) return <LivePage key={a} base={base} name={a} />;
  if (view === "compare" && a && b) return <ComparePage key={`${a}/${b}`} base={base} a={a} b={b} />;
  return <RunList base={base} />;
}

function App({ data }: { data: Data }) {
  switch (data.kind) {
    case "summary":
      document.title = `${data.summary.primary_diagnosis.status} · ${data.summary.run.name} · TraceML`;
      return <RunView summary={data.summary} />;
    case "comparison":
      document.title = `${data.comparison.verdict} · ${data.comparison.a.name} against ${data.comparison.b.name} · TraceML`;
      return <CompareView {...data} />;
    case "live":
      return <LiveApp base={data.base} />;
  }
}

function Page({ data }: { data: Data }) {
  const brand = data.kind === "live" ? <a href="#/">TraceML <span>all runs</span></a> : "TraceML";
  return (
    <>
      <header class="top">{brand}</header>
      <main>
        <App data={data} />
      </main>
    </>
  );
}

/** On paper the page is light, charts included. */
function setTheme(theme: string): void {
  document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("traceml-theme"));
}

const place = document.getElementById("page");
const text = document.getElementById("traceml-data")?.textContent ?? "";
if (place) {
  place.textContent = "";
  if (text.trim()) render(<Page data={JSON.parse(text) as Data} />, place);
  else place.textContent = "TraceML: there is no data in this page.";
  addEventListener("beforeprint", () => setTheme("light"));
  addEventListener("afterprint", () => setTheme(""));
}
