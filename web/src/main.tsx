// Reads the JSON in the page and shows it. Text always becomes text nodes; no data is ever parsed as HTML.
import { render } from "preact";
import { CompareView } from "./compare";
import { LiveApp } from "./live";
import { RunView } from "./run";
import "./style.css";
import type { Data } from "./types";

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
  return (
    <>
      <header class="top">
        {data.kind === "live" ? (
          <a href="#/" class="brand">
            TraceML <span>all runs</span>
          </a>
        ) : (
          <span class="brand">TraceML</span>
        )}
      </header>
      <main>
        <App data={data} />
      </main>
    </>
  );
}

/** On paper the page is light, charts included. */
function printLight(): void {
  const set = (theme: string) => () => {
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("traceml-theme"));
  };
  addEventListener("beforeprint", set("light"));
  addEventListener("afterprint", set(""));
}

const place = document.getElementById("page");
const text = document.getElementById("traceml-data")?.textContent ?? "";
if (place) {
  place.textContent = "";
  if (text.trim()) render(<Page data={JSON.parse(text) as Data} />, place);
  else place.textContent = "TraceML: there is no data in this page.";
  printLight();
}
