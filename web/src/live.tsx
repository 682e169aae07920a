// The page at a server: the list of runs, one run as it goes on, and two runs compared.
import { useEffect, useState } from "preact/hooks";
import { useEvents } from "./chart";
import { CompareView } from "./compare";
import * as fmt from "./fmt";
import { Badge, Table } from "./parts";
import { RunView } from "./run";
import type { Compared, ListedRun, LiveRun } from "./types";

const FIRST_RETRY_MS = 1000;
const LONGEST_RETRY_MS = 30_000;
const LIST_EVERY_MS = 5000;
const SILENT_MS = 15_000; // the server sends about once per second

/** Without an answer from the server, and since when. */
type Lost = Date | null;

/** The server answered that it cannot, and why. */
class Refused extends Error {
  constructor(
    line: string,
    readonly status: number,
  ) {
    super(line);
  }
}

async function get<T>(address: string): Promise<T> {
  const answer = await fetch(address, { cache: "no-store" });
  if (answer.ok) return (await answer.json()) as T;
  const said = await answer.json().then(
    (body: { error?: string }) => body.error,
    () => undefined,
  );
  const line = answer.status === 404 ? "There is no such run." : (said ?? `The server answered ${answer.status}.`);
  throw new Refused(line, answer.status);
}

const isOver = (run: LiveRun | null): boolean => run?.live.state === "finished" || run?.live.state === "crashed";

/** One run's newest state; after a broken connection the last one, and since when it is old. */
function useRun(base: string, name: string): [LiveRun | null, Lost, string] {
  const [run, setRun] = useState<LiveRun | null>(null);
  const [lost, setLost] = useState<Lost>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const address = `${base}api/run/${encodeURIComponent(name)}`;
    let [wait, source, timer, silence] = [FIRST_RETRY_MS, null as EventSource | null, 0, 0];
    let [isGone, isDone] = [false, false];
    const show = (news: LiveRun): void => {
      if (isGone) return;
      wait = FIRST_RETRY_MS;
      setRun(news);
      setLost(null);
      setProblem("");
      isDone = isOver(news);
      if (isDone) stop();
      else heard();
    };
    const connect = (): void => {
      heard();
      get<LiveRun>(address).then(
        (news) => {
          show(news);
          if (!isGone && !isDone && !document.hidden) listen();
        },
        (error: Error) => {
          broken();
          if (!(error instanceof Refused)) return;
          if (error.status === 404) stop(); // trying again is no use
          setProblem(error.message);
        },
      );
    };
    const listen = (): void => {
      source?.close();
      source = new EventSource(`${address}/events`);
      source.onmessage = (event) => show(JSON.parse(event.data as string) as LiveRun);
      source.addEventListener("end", stop);
      source.onerror = broken;
    };
    const heard = (): void => {
      clearTimeout(silence);
      silence = setTimeout(broken, SILENT_MS);
    };
    const stop = (): void => {
      source?.close();
      clearTimeout(timer);
      clearTimeout(silence);
    };
    const broken = (): void => {
      stop();
      if (isGone) return;
      setLost((old) => old ?? new Date());
      timer = setTimeout(connect, wait);
      wait = Math.min(2 * wait, LONGEST_RETRY_MS);
    };
    // A browser has six connections to a server: only tabs that somebody sees may keep one.
    const turned = (): void => (document.hidden || isDone ? stop() : connect());
    document.addEventListener("visibilitychange", turned);
    connect();
    return () => {
      isGone = true;
      document.removeEventListener("visibilitychange", turned);
      stop();
    };
  }, [base, name]);
  return [run, lost, problem];
}

/** While the server does not answer, or refuses: its own words, or since when there is none. */
function Trouble({ lost, problem }: { lost: Lost; problem: string }) {
  if (!lost) return null;
  if (problem) return <p class="banner">{problem}</p>;
  return (
    <p class="banner" role="alert">
      No connection to TraceML since {lost.toLocaleTimeString()}. What you see is from then; trying again.
    </p>
  );
}

function LivePage({ base, name }: { base: string; name: string }) {
  const [run, lost, problem] = useRun(base, name);
  const isLost = lost !== null && !isOver(run);
  useEffect(() => {
    document.title = run ? `${run.summary.primary_diagnosis.status} · ${name} · TraceML` : `${name} · TraceML`;
  }, [run, name]);
  return (
    <>
      {isLost && (run || !problem) && <Trouble lost={lost} problem={problem} />}
      {run ? (
        <RunView summary={run.summary} look={run.live} isLost={isLost} />
      ) : (
        <p class="loading">{problem || "Loading…"}</p>
      )}
    </>
  );
}

/** What the server answers to a question, asked again every so often; the last answer stays while there is none. */
function useAnswer<T>(address: string, everyMs = 0): [T | null, Lost, string] {
  const [found, setFound] = useState<T | null>(null);
  const [lost, setLost] = useState<Lost>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let timer = 0;
    const load = (): Promise<void> =>
      get<T>(address)
        .then(
          (answer) => (setFound(answer), setLost(null)),
          (error: Error) => {
            setProblem(error instanceof Refused ? error.message : "");
            setLost((old) => old ?? new Date());
          },
        )
        .then(() => void (everyMs && (timer = setTimeout(load, everyMs))));
    void load();
    return () => clearTimeout(timer);
  }, [address]);
  return [found, lost, problem];
}

function RunList({ base }: { base: string }) {
  const [answer, lost, problem] = useAnswer<{ runs: ListedRun[] }>(`${base}api/runs`, LIST_EVERY_MS);
  const [chosen, setChosen] = useState<string[]>([]);
  const runs = answer?.runs;
  document.title = "Runs · TraceML";
  const toggle = (name: string): void =>
    setChosen((old) => (old.includes(name) ? old.filter((one) => one !== name) : [...old, name].slice(-2)));
  const [a, b] = chosen;
  const rows = (runs ?? []).map((run) => [
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
        {runs && !runs.length && <p>There is no run here yet. Start one with: traceml run train.py</p>}
        {!runs && <p class="loading">{lost ? "" : "Loading…"}</p>}
        {!!rows.length && <Table caption="Runs" hideCaption head={head} rows={rows} words={[1, 2, 3]} />}
      </section>
    </article>
  );
}

function ComparePage({ base, a, b }: { base: string; a: string; b: string }) {
  const names = `a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`;
  const [found, lost, problem] = useAnswer<Compared>(`${base}api/compare?${names}`);
  document.title = `${a} against ${b} · TraceML`;
  if (found) return <CompareView {...found} />;
  return <p class="loading">{problem || (lost ? "No connection to TraceML." : "Loading…")}</p>;
}

function route(): string[] {
  return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function LiveApp({ base }: { base: string }) {
  const [[view, a, b], setRoute] = useState(route());
  useEvents(["hashchange"], () => {
    setRoute(route());
    scrollTo(0, 0);
  });
  if (view === "run" && a !== undefined) return <LivePage key={a} base={base} name={a} />;
  if (view === "compare" && a !== undefined && b !== undefined)
    return <ComparePage key={`${a}/${b}`} base={base} a={a} b={b} />;
  return <RunList base={base} />;
}
