//! A real browser without a window, for pages of the service: Debian's `chromium` and `chromium-driver`.
//! What the pages do is for the tests.

use std::path::Path;

use thirtyfour::{By, ChromiumLikeCapabilities as _, DesiredCapabilities, WebDriver, WebElement};

use crate::{
    process::{Programs, Running},
    wait::{LIMIT, wait_for},
};

/// Where Debian puts the program that drives the browser.
const DRIVER: &str = "/usr/bin/chromedriver";

/// What it says once it listens, on a port that it chose.
const LISTENS: &str = "started successfully on port ";

/// A window with one page.
#[derive(Debug)]
pub struct Browser {
    window: WebDriver,
    // The browser's processes are its children.
    _driver: Running,
}

impl Browser {
    /// A new browser with an empty profile.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    pub async fn start(programs: &Programs) -> Self {
        assert!(Path::new(DRIVER).exists(), "{DRIVER} is missing; run `apt-get install chromium chromium-driver`");
        let driver = programs.start(DRIVER, &["--port=0"]);
        let port: u16 = wait_for("the browser's driver", LIMIT, || async {
            let log = driver.log();
            let port = log.split_once(LISTENS).and_then(|(_, rest)| rest.split(['.', '\n']).next()?.parse().ok());
            port.ok_or(log)
        })
        .await;
        let mut wanted = DesiredCapabilities::chrome();
        // Without a sandbox it runs as root and in containers, too; it shows nothing but pages under test.
        for flag in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] {
            wanted.add_arg(flag).expect("a flag is text");
        }
        let window = WebDriver::new(format!("http://127.0.0.1:{port}"), wanted).await;
        let window = window.unwrap_or_else(|error| panic!("the browser does not start: {error}; {}", driver.log()));
        Self { window, _driver: driver }
    }

    /// Opens a page.
    ///
    /// # Panics
    /// When it can't be reached.
    pub async fn open(&self, url: &str) {
        self.window.goto(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    }

    /// The element with this id.
    ///
    /// # Panics
    /// When there is none.
    pub async fn element(&self, id: &str) -> WebElement {
        let found = self.window.find(By::Id(id)).await;
        found.unwrap_or_else(|error| panic!("the page has no element {id:?}: {error}"))
    }

    /// Types into a field what replaces its text.
    ///
    /// # Panics
    /// When it is no field that can be typed into.
    pub async fn fill(&self, id: &str, text: &str) {
        let field = self.element(id).await;
        field.clear().await.unwrap_or_else(|error| panic!("{id}: {error}"));
        field.send_keys(text).await.unwrap_or_else(|error| panic!("{id}: {error}"));
    }

    /// Clicks.
    ///
    /// # Panics
    /// When it can't be clicked.
    pub async fn click(&self, id: &str) {
        self.element(id).await.click().await.unwrap_or_else(|error| panic!("{id}: {error}"));
    }

    /// All that a user can read on the page.
    ///
    /// # Panics
    /// When there is no page.
    pub async fn text(&self) -> String {
        let body = self.window.find(By::Tag("body")).await.expect("a page has a body");
        body.text().await.expect("a body has text")
    }

    /// Waits until a text is on the page.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn wait_text(&self, text: &str) {
        wait_for(&format!("{text:?} on the page"), LIMIT, || async {
            // A page that is being replaced has no body for a moment.
            let body = self.window.find(By::Tag("body")).await.map_err(|error| error.to_string())?;
            let shown = body.text().await.map_err(|error| error.to_string())?;
            if shown.contains(text) { Ok(()) } else { Err(shown) }
        })
        .await;
    }

    /// Closes the window and ends the browser.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn close(self) {
        self.window.quit().await.expect("the browser ends");
    }
}
