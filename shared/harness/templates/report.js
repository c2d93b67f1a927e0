"use strict";
const byId = (id) => document.getElementById(id);
const search = byId("search"), shown = byId("shown"), clear = byId("clear"), theme = byId("theme"), differ = byId("differ");
const selects = ["paper", "source", "verdict"].map(byId);
const claims = [...document.querySelectorAll(".claim")];
const texts = new Map();
let opened = [];
const STATE = /^(q|paper|source|verdict|differ|at)=/;

// Everything a claim or a check says, in lower case, what is not laid out yet included; made when it is first searched.
function textOf(element) {
  if (!texts.has(element)) {
    const parts = [...element.querySelectorAll("template")].map((one) => one.content.textContent);
    const own = [element, ...element.querySelectorAll(".check")].map((one) => one.id);
    texts.set(element, [...own, element.textContent, ...parts].join(" ").toLowerCase().replace(/\s+/g, " "));
  }
  return texts.get(element);
}

// What stands in a check is laid out when it is first opened: hundreds of checks would make a phone slow.
function fill(check) {
  const waiting = check.querySelector(":scope > template");
  if (waiting) waiting.replaceWith(waiting.content);
}
// A claim with few checks opens with them.
function unfold(claim) {
  const checks = [...claim.querySelectorAll(".check")];
  if (claim.dataset.seen || checks.length > 3) return;
  claim.dataset.seen = "1";
  for (const check of checks) { fill(check); check.open = true; }
}
document.addEventListener("toggle", ({ target: box }) => {
  if (box.open && box.matches(".check")) fill(box);
  if (box.open && box.matches(".claim")) unfold(box);
}, true);

function words() { return search.value.toLowerCase().split(/\s+/).filter(Boolean); }

// A claim fits if it belongs to the paper, has the words, and one of its lines has source, verdict and disagreement at once.
function apply() {
  const [paper, source, verdict] = selects.map((select) => select.value), wanted = words();
  const narrowed = Boolean(source || verdict || differ.checked);
  let count = 0;
  for (const claim of claims) {
    const lines = [...claim.querySelectorAll(":scope > summary .line")];
    const fitting = lines.filter((line) => (!source || line.dataset.source === source)
      && (!verdict || line.dataset.verdicts.split(" ").includes(verdict)) && (!differ.checked || "differs" in line.dataset));
    for (const line of lines) line.classList.toggle("fits", fitting.includes(line));
    claim.classList.toggle("filtered", narrowed);
    const fits = (!paper || claim.closest(".paper").dataset.paper === paper) && (!narrowed || fitting.length > 0)
      && wanted.every((word) => textOf(claim).includes(word));
    claim.hidden = !fits;
    count += fits;
    if (fits) for (const check of claim.querySelectorAll(".check")) {
      check.classList.toggle("hit", wanted.length > 0 && wanted.every((word) => textOf(check).includes(word)));
    }
  }
  const any = narrowed || paper || wanted.length;
  for (const section of document.querySelectorAll(".section")) section.hidden = !section.querySelector(".claim:not([hidden])");
  for (const part of document.querySelectorAll(".paper")) part.hidden = Boolean(any) && !part.querySelector(".claim:not([hidden])");
  for (const link of document.querySelectorAll(".contents ol a")) link.hidden = byId(decodeURIComponent(link.hash.slice(1))).hidden;
  shown.textContent = any ? `${count} of ${claims.length} claims` : `${claims.length} claims`;
  clear.hidden = !any;
  byId("nothing").hidden = count > 0;
}

// The state in the address, so that a filtered page can be sent to somebody.
function remember(at = "") {
  const state = new URLSearchParams();
  if (search.value.trim()) state.set("q", search.value.trim());
  for (const select of selects) if (select.value) state.set(select.id, select.value);
  if (differ.checked) state.set("differ", "1");
  const text = state.toString();
  const hash = text ? `#${at ? `${text}&at=${encodeURIComponent(at)}` : text}` : at ? `#${at}` : " ";
  history.replaceState(null, "", hash === " " ? location.pathname + location.search : hash);
}

function update() { apply(); remember(); }

function reset() {
  search.value = ""; differ.checked = false;
  for (const select of selects) select.value = "";
  update();
}

// The element of an id, or of the name of a number: some/check[lr=0.1]:won@full.
function targetOf(name) { return byId(name) || byId(name.replace(/@[\w-]+$/, "").replace(/:\w+$/, "").replace(/\[.*\]$/, "")); }

function reveal(name) {
  const element = targetOf(name);
  if (!element) return;
  const claim = element.closest(".claim");
  if (claim && claim.hidden) reset();
  if (element.closest(".paper")?.hidden) reset();
  for (let box = element.closest("details"); box; box = box.parentElement.closest("details")) {
    if (box.matches(".check")) fill(box);
    box.open = true;
  }
  element.scrollIntoView();
  if (claim) element.querySelector("summary").focus({ preventScroll: true });
}

function readAddress() {
  const hash = decodeURI(location.hash.slice(1));
  if (!hash) { reset(); return; }
  if (!STATE.test(hash)) { apply(); reveal(decodeURIComponent(location.hash.slice(1))); return; }
  const state = new URLSearchParams(location.hash.slice(1));
  search.value = state.get("q") || "";
  for (const select of selects) {
    select.value = state.get(select.id) || "";
    if (select.selectedIndex < 0) select.value = "";
  }
  differ.checked = state.has("differ");
  apply();
  if (state.get("at")) reveal(state.get("at"));
  else if (claims.some((claim) => !claim.hidden)) claims.find((claim) => !claim.hidden).closest(".paper").scrollIntoView();
}

let waiting;
search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(update, 80); });
for (const select of selects) select.addEventListener("change", update);
differ.addEventListener("change", update);
clear.addEventListener("click", () => { reset(); search.focus(); });
window.addEventListener("hashchange", readAddress);
for (const claim of claims) claim.querySelector("summary").addEventListener("click", () => remember(claim.open ? "" : claim.id));

// Light, dark, or as the system has it.
const NAMES = { "": "as the system", light: "light", dark: "dark" };
function paint() {
  const now = document.documentElement.dataset.theme || "";
  theme.textContent = { "": "◐", light: "☀", dark: "☾" }[now];
  theme.setAttribute("aria-label", `Colours: ${NAMES[now]}`);
  theme.title = `Colours: ${NAMES[now]}`;
}
function turn() {
  const order = matchMedia("(prefers-color-scheme: dark)").matches ? ["", "light", "dark"] : ["", "dark", "light"];
  const next = order[(order.indexOf(document.documentElement.dataset.theme || "") + 1) % 3];
  if (next) document.documentElement.dataset.theme = next; else delete document.documentElement.dataset.theme;
  try { localStorage.setItem("theme", next); } catch (error) { /* no storage */ }
  paint();
}
theme.addEventListener("click", turn);
paint();

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key === "Escape") {
    if (document.activeElement === search && !search.value) search.blur(); else reset();
  } else if (!typing && event.key === "/") { event.preventDefault(); search.focus(); search.select(); }
  else if (!typing && event.key === "t") turn();
  else if (!typing && (event.key === "j" || event.key === "k")) {
    const visible = claims.filter((claim) => !claim.hidden);
    const at = visible.indexOf(document.activeElement.closest?.(".claim"));
    const next = visible[event.key === "j" ? at + 1 : Math.max(at, 1) - 1];
    if (next) { const head = next.querySelector("summary"); head.focus(); head.scrollIntoView({ block: "nearest" }); }
  }
});

function say(text) {
  const said = byId("said");
  said.textContent = text; said.classList.add("on");
  setTimeout(() => said.classList.remove("on"), 1500);
}
async function copyText(text) {
  try { await navigator.clipboard.writeText(text); return; } catch (error) { /* not allowed for a file, or no permission */ }
  const box = document.createElement("textarea");
  box.value = text; box.style.position = "fixed"; box.style.opacity = "0";
  document.body.append(box); box.select(); document.execCommand("copy"); box.remove();
}
document.addEventListener("click", (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const text = button.dataset.copy;
  copyText(text.startsWith("#") ? location.href.split("#")[0] + text : text).then(() => say("Copied"));
});

// Contents: closed on a narrow screen; marks the claim in view.
const contents = document.querySelector(".contents");
if (matchMedia("(max-width: 70rem)").matches) contents.open = false;
contents.addEventListener("click", (event) => { if (event.target.closest("a") && matchMedia("(max-width: 70rem)").matches) contents.open = false; });
const links = new Map([...contents.querySelectorAll("ol a")].map((link) => [decodeURIComponent(link.hash.slice(1)), link]));
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) links.get(entry.target.id)?.classList.toggle("now", entry.isIntersecting);
}, { rootMargin: "-15% 0px -70% 0px" });
for (const claim of claims) watch.observe(claim);

// On paper every claim that is shown is open, its checks one line each unless they were opened.
addEventListener("beforeprint", () => {
  opened = claims.filter((claim) => !claim.open && !claim.hidden);
  for (const claim of opened) claim.open = true;
  for (const image of document.images) image.loading = "eager";
});
addEventListener("afterprint", () => { for (const claim of opened) claim.open = false; });

readAddress();
