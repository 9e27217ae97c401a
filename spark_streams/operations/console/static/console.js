// Live sections: when the server was read again, the page is fetched and its sections with data-live are replaced.
"use strict";

const LIVE = "[data-live]";
let isFetching = false;
let isStale = false;

function isInUse(section) {
  const selection = document.getSelection();
  const hasSelection = selection && !selection.isCollapsed && section.contains(selection.anchorNode);
  return hasSelection || section.contains(document.activeElement);
}

// Elements that scroll keep their position.
function replaceContent(section, fresh) {
  const before = [...section.querySelectorAll(".wide")].map((box) => box.scrollLeft);
  section.replaceChildren(...fresh.childNodes);
  section.querySelectorAll(".wide").forEach((box, number) => { box.scrollLeft = before[number] || 0; });
}

// Times are UTC. A button shows those of the browser's zone beside them, and a cookie remembers it.
const zone = document.createElement("button");

function isLocal() {
  return document.cookie.split("; ").includes("rstream_times=local");
}

function showTimes(page) {
  zone.textContent = isLocal() ? "Show UTC only" : "Show local times, too";
  page.querySelectorAll("time + .local").forEach((local) => local.remove());
  if (!isLocal()) return;
  for (const time of page.querySelectorAll("time")) {
    const local = document.createElement("span");
    local.className = "local soft";
    local.textContent = ` (${new Date(time.dateTime).toLocaleString("sv")} ${new Intl.DateTimeFormat().resolvedOptions().timeZone})`;
    time.after(local);
  }
}

async function refresh() {
  if (document.hidden || isFetching) {
    isStale = true;
    return;
  }
  isFetching = true;
  isStale = false;
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html", "X-Live": "1" } });
    if (response.redirected) {
      location.reload();  // the session has ended
      return;
    }
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    showTimes(fresh);
    for (const section of document.querySelectorAll(LIVE)) {
      const replacement = fresh.getElementById(section.id);
      if (replacement && replacement.innerHTML !== section.innerHTML && !isInUse(section)) {
        replaceContent(section, replacement);
      }
    }
  } catch {
    // The console is away: EventSource connects again, and its first event refreshes the page.
    document.body.classList.add("away");
    isStale = true;
  } finally {
    isFetching = false;
  }
  if (isStale && !document.hidden && !document.body.classList.contains("away")) {
    refresh();
  }
}

zone.className = "plain";
zone.addEventListener("click", () => {
  document.cookie = `rstream_times=${isLocal() ? "utc" : "local"}; Path=/; Max-Age=31536000; SameSite=Strict`;
  showTimes(document);
});
document.querySelector("footer").append(zone);
showTimes(document);

if (document.querySelector("main " + LIVE)) {
  const events = new EventSource("/events");
  events.addEventListener("snapshot", refresh);
  events.addEventListener("error", () => document.body.classList.add("away"));
  events.addEventListener("open", () => {
    document.body.classList.remove("away");
    if (document.getElementById("change")) refresh();  // it may have ended meanwhile
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && isStale) refresh(); });
}

// The box in the head of a table of dead letters selects all rows of the page.
const boxes = document.querySelectorAll("#letters tbody input[type=checkbox][name=id]");
const corner = document.querySelector("#letters thead td");
if (boxes.length && corner) {
  const all = document.createElement("input");
  all.type = "checkbox";
  all.setAttribute("aria-label", "Select all on this page");
  all.addEventListener("change", () => boxes.forEach((box) => { box.checked = all.checked; }));
  corner.append(all);
}
