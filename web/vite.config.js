// One HTML file: script and style go into it. Their hashes are all that the page's security policy allows, so text
// that got into the page by mistake could neither run nor load anything.
import { createHash } from "node:crypto";
import { defineConfig } from "vite";

const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

function inline() {
  return {
    name: "inline",
    enforce: "post",
    generateBundle(_options, bundle) {
      const files = Object.values(bundle);
      const code = files
        .filter((file) => file.type === "chunk")
        .map((file) => file.code)
        .join("\n");
      const css = files
        .filter((file) => file.fileName.endsWith(".css"))
        .map((file) => file.source)
        .join("\n");
      const script = code.replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
      const rules = [
        "default-src 'none'",
        `script-src ${hash(script)}`,
        `style-src ${hash(css)}`,
        "connect-src 'self'",
      ];
      const policy = `<meta http-equiv="Content-Security-Policy" content="${rules.join("; ")}">`;
      for (const file of files) {
        if (file.fileName !== "page.html") {
          delete bundle[file.fileName];
          continue;
        }
        file.source = file.source
          .replace(/\s*<script type="module"[^>]*><\/script>/, "")
          .replace(/\s*<link rel="stylesheet"[^>]*>/, "")
          .replace("</title>", () => `</title>\n    ${policy}\n    <style>${css}</style>`)
          .replace("</body>", () => `<script type="module">${script}</script>\n  </body>`);
      }
    },
  };
}

export default defineConfig({
  plugins: [inline()],
  logLevel: "warn",
  build: {
    target: "es2022",
    outDir: "../src/traceml/present",
    emptyOutDir: false,
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: { input: "page.html" },
  },
});
