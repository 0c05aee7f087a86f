// SPDX-License-Identifier: MIT OR Apache-2.0
//! A headless Chromium, controlled by the DevTools protocol over a pair of pipes.
//!
//! Chromium reads commands from descriptor 3 and writes answers to descriptor 4, JSON texts that
//! end in a zero byte. A shell moves its standard input and output there, so that neither a port
//! nor a WebSocket nor unsafe code is needed.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use serde_json::{json, Value};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);
const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
];

/// A running browser with one page. Dropping it ends the browser.
pub(crate) struct Browser {
    child: Child,
    commands: RefCell<ChildStdin>,
    answers: Receiver<Value>,
    last_id: RefCell<u64>,
    session: RefCell<Option<String>>,
    complaints: RefCell<Vec<String>>,
    home: TempDir,
}

/// The mouse's buttons, and modifier keys.
#[derive(Clone, Copy, Default)]
pub(crate) struct Held {
    pub(crate) shift: bool,
    pub(crate) right: bool,
    pub(crate) alt: bool,
}

impl Browser {
    /// Starts Chromium. If it is not installed, prints "skipped" and returns `None`.
    pub(crate) fn start() -> Option<Self> {
        let Some(program) = find_chromium() else {
            println!("skipped: chromium is not installed");
            return None;
        };
        let home = TempDir::new().expect("a temporary directory for the browser");
        let mut child = Command::new("sh")
            .args([
                "-c",
                r#"exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null"#,
                "sh",
            ])
            .arg(program)
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", home.path().display()))
            .arg("about:blank")
            .env("HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the shell starts chromium");
        let commands = child.stdin.take().expect("standard input is piped");
        let output = child.stdout.take().expect("standard output is piped");
        let (sender, answers) = channel();
        // The thread ends with the browser, when its pipe is closed.
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut text = Vec::new();
            while output.read_until(0, &mut text).is_ok_and(|read| read > 0) {
                text.pop();
                let Ok(message) = serde_json::from_slice(&text) else {
                    break;
                };
                if sender.send(message).is_err() {
                    break;
                }
                text.clear();
            }
        });
        let browser = Self {
            child,
            commands: RefCell::new(commands),
            answers,
            last_id: RefCell::new(0),
            session: RefCell::new(None),
            complaints: RefCell::new(Vec::new()),
            home,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let session = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        );
        *browser.session.borrow_mut() = session["sessionId"].as_str().map(str::to_owned);
        for domain in [
            "Page.enable",
            "Runtime.enable",
            "Log.enable",
            "Network.enable",
        ] {
            browser.call(domain, json!({}));
        }
        browser.resize(1280, 800, 1.0);
        Some(browser)
    }

    /// Sends a command and waits for its answer; events meanwhile are recorded.
    pub(crate) fn call(&self, method: &str, parameters: Value) -> Value {
        let id = {
            let mut last = self.last_id.borrow_mut();
            *last += 1;
            *last
        };
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = self.session.borrow().as_ref() {
            message["sessionId"] = json!(session);
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.commands
            .borrow_mut()
            .write_all(&text)
            .expect("the browser takes commands");
        loop {
            let answer = self
                .answers
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("no answer to {method}"));
            if answer["id"] == json!(id) {
                assert!(
                    answer.get("error").is_none(),
                    "{method}: {}",
                    answer["error"]
                );
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    /// Collects messages that a correct page never prints.
    fn note(&self, event: &Value) {
        let parameters = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => Some(parameters["exceptionDetails"].to_string()),
            Some("Runtime.consoleAPICalled")
                if parameters["type"] == "error" || parameters["type"] == "warning" =>
            {
                Some(parameters["args"].to_string())
            }
            Some("Log.entryAdded") => Some(parameters["entry"].to_string()),
            // The page must load nothing but itself.
            Some("Network.requestWillBeSent") if parameters["type"] != "Document" => {
                Some(format!("request of {}", parameters["request"]["url"]))
            }
            Some("Inspector.targetCrashed") => Some("the page crashed".to_owned()),
            _ => None,
        };
        self.complaints.borrow_mut().extend(complaint);
    }

    /// Errors, warnings and requests so far.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.complaints.borrow().clone()
    }

    /// Puts `html` on disk, opens it and waits until it is drawn.
    ///
    /// A first layout may have had a scroll bar that the second has not: the plot takes its width
    /// from the layout, so measurements must wait until it is stable.
    pub(crate) fn open(&self, html: &str) {
        self.open_at(html, "window.overhear?.ready === true");
    }

    /// Puts `html` on disk, opens it and waits until an expression is true.
    pub(crate) fn open_at(&self, html: &str, is_ready: &str) {
        let path = self.home.path().join("report.html");
        std::fs::write(&path, html).expect("the page is written");
        self.call(
            "Page.navigate",
            json!({"url": format!("file://{}", path.display())}),
        );
        self.wait_for(&format!("location.protocol === 'file:' && {is_ready}"));
        self.settle();
    }

    /// Goes to an address, and waits for its page.
    pub(crate) fn visit(&self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
        let there = json!(url);
        self.wait_for(&format!(
            "location.href === {there} && document.readyState === 'complete'"
        ));
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&self, expression: &str) {
        let start = Instant::now();
        while self.evaluate(expression) != json!(true) {
            assert!(
                start.elapsed() < PATIENCE,
                "never: {expression}: {:?}",
                self.complaints()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The value of a JavaScript expression.
    pub(crate) fn evaluate(&self, expression: &str) -> Value {
        let answer = self.call(
            "Runtime.evaluate",
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true}),
        );
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{expression}: {}",
            answer["exceptionDetails"]
        );
        answer["result"]["value"].clone()
    }

    pub(crate) fn number(&self, expression: &str) -> f64 {
        let value = self.evaluate(expression);
        value
            .as_f64()
            .unwrap_or_else(|| panic!("{expression} is {value}"))
    }

    pub(crate) fn text(&self, expression: &str) -> String {
        let value = self.evaluate(expression);
        value
            .as_str()
            .unwrap_or_else(|| panic!("{expression} is {value}"))
            .to_owned()
    }

    /// Waits until the page has drawn earlier changes.
    pub(crate) fn settle(&self) {
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))");
    }

    pub(crate) fn resize(&self, width: u32, height: u32, scale: f64) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": false}),
        );
    }

    pub(crate) fn prefer(&self, scheme: &str) {
        self.call(
            "Emulation.setEmulatedMedia",
            json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]}),
        );
        self.settle();
    }

    fn mouse(&self, kind: &str, (x, y): (f64, f64), pressed: bool, held: Held) {
        let button = if held.right { "right" } else { "left" };
        let hover = kind == "mouseMoved" && !pressed;
        self.call(
            "Input.dispatchMouseEvent",
            json!({
                "type": kind, "x": x, "y": y, "clickCount": 1, "pointerType": "mouse",
                "button": if hover { "none" } else { button },
                "buttons": if !pressed { 0 } else if held.right { 2 } else { 1 },
                "modifiers": u8::from(held.alt) + 8 * u8::from(held.shift),
            }),
        );
    }

    pub(crate) fn hover(&self, at: (f64, f64)) {
        self.mouse("mouseMoved", at, false, Held::default());
        self.settle();
    }

    pub(crate) fn click(&self, at: (f64, f64), held: Held) {
        self.mouse("mouseMoved", at, false, held);
        self.mouse("mousePressed", at, true, held);
        self.mouse("mouseReleased", at, false, held);
        self.settle();
    }

    pub(crate) fn drag(&self, from: (f64, f64), to: (f64, f64), held: Held) {
        self.mouse("mouseMoved", from, false, held);
        self.mouse("mousePressed", from, true, held);
        for step in 1..=4 {
            let share = f64::from(step) / 4.0;
            let at = (
                from.0 + (to.0 - from.0) * share,
                from.1 + (to.1 - from.1) * share,
            );
            self.mouse("mouseMoved", at, true, held);
        }
        self.mouse("mouseReleased", to, false, held);
        self.settle();
    }

    pub(crate) fn wheel(&self, (x, y): (f64, f64), delta: f64) {
        self.call(
            "Input.dispatchMouseEvent",
            json!({"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": delta}),
        );
        self.settle();
    }

    /// Presses a key by its DOM name, such as "ArrowLeft" or "d".
    pub(crate) fn key(&self, key: &str) {
        let mut down = json!({"type": "keyDown", "key": key});
        if key.chars().count() == 1 {
            down["text"] = json!(key);
        }
        self.call("Input.dispatchKeyEvent", down);
        self.call(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key}),
        );
        self.settle();
    }

    /// Writes a picture of the window, or of the complete page, to `path`.
    pub(crate) fn screenshot(&self, path: &Path, full: bool) {
        self.capture(
            path,
            json!({"format": "png", "captureBeyondViewport": full}),
        );
    }

    /// Writes a picture of an element's surroundings, enlarged, to `path`.
    pub(crate) fn enlarge(&self, path: &Path, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let (left, top) = (self.number("scrollX"), self.number("scrollY"));
        let clip =
            json!({"x": x + left, "y": y + top, "width": width, "height": height, "scale": 3});
        self.capture(path, json!({"format": "png", "clip": clip}));
    }

    fn capture(&self, path: &Path, how: Value) {
        let answer = self.call("Page.captureScreenshot", how);
        let data = STANDARD
            .decode(answer["data"].as_str().expect("a picture"))
            .expect("base64");
        std::fs::write(path, data).expect("the picture is written");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let mut close = json!({"id": u64::MAX >> 12, "method": "Browser.close"})
            .to_string()
            .into_bytes();
        close.push(0);
        let _ = self.commands.borrow_mut().write_all(&close);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn find_chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|folder| {
            ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name))
        })
        .find(|file| file.is_file())
}
