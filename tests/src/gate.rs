//! A proxy before a web server that refuses what a test tells it to, or loses the answers, so many times, or lets
//! requests stand still.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::exchange::{Request, ask, json, serve};

/// A proxy. Its threads end with the process.
#[derive(Clone, Debug)]
pub struct Gate {
    port: u16,
    rules: Arc<Mutex<Rules>>,
    released: Arc<Condvar>,
}

#[derive(Debug, Default)]
struct Rules {
    /// A part of the request line, the status, and how many times.
    refusals: Vec<(String, u16, u32)>,
    /// A part of the request line, one of the answer, and how many such answers are lost.
    losses: Vec<(String, String, u32)>,
    /// A part of the request line, one of the answer, and whether such an answer has passed, after which such requests stand.
    hold: Option<(String, String, bool)>,
    passed: Vec<String>,
    refused: Vec<String>,
}

impl Rules {
    fn holds(&self, line: &str) -> bool {
        self.hold.as_ref().is_some_and(|(part, _, has_begun)| *has_begun && line.contains(part.as_str()))
    }
}

impl Gate {
    /// A proxy before a port of this machine.
    ///
    /// # Panics
    /// When it can't listen.
    #[must_use]
    pub fn before(target: u16) -> Self {
        let rules: Arc<Mutex<Rules>> = Arc::default();
        let released: Arc<Condvar> = Arc::default();
        let (own, go_on) = (Arc::clone(&rules), Arc::clone(&released));
        let port = serve(move |request: Request| {
            let line = format!("{} {}", request.method, request.target);
            {
                let rules = own.lock().unwrap_or_else(PoisonError::into_inner);
                let mut rules =
                    go_on.wait_while(rules, |rules| rules.holds(&line)).unwrap_or_else(PoisonError::into_inner);
                let refusal =
                    rules.refusals.iter_mut().find(|(part, _, left)| *left > 0 && line.contains(part.as_str()));
                if let Some((_, status, left)) = refusal {
                    *left -= 1;
                    let status = *status;
                    rules.refused.push(line);
                    return json(status, &serde_json::json!({"message": "refused by the test"}));
                }
                rules.passed.push(line.clone());
            }
            // One request a connection, so that the answer's end is the connection's.
            let kept = request
                .head
                .lines()
                .filter(|line| !line.is_empty() && !line.to_ascii_lowercase().starts_with("connection:"));
            let head: String = kept.chain(["Connection: close", ""]).flat_map(|line| [line, "\r\n"]).collect();
            let answer = ask(target, &head, &request.body).unwrap_or_default();
            let mut rules = own.lock().unwrap_or_else(PoisonError::into_inner);
            let text = String::from_utf8_lossy(&answer);
            if let Some((part, told, has_begun)) = &mut rules.hold {
                *has_begun |= line.contains(part.as_str()) && text.contains(told.as_str());
            }
            let loss = rules
                .losses
                .iter_mut()
                .find(|(part, told, left)| *left > 0 && line.contains(part.as_str()) && text.contains(told.as_str()));
            match loss {
                // The connection ends without a word.
                Some((.., left)) => {
                    *left -= 1;
                    Vec::new()
                }
                None => answer,
            }
        });
        Self { port, rules, released }
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Refuses the next requests whose line (`PUT /x?y=z`) has this part.
    pub fn refuse(&self, part: &str, status: u16, times: u32) {
        self.rules().refusals.push((part.into(), status, times));
    }

    /// Hands on the next requests whose line has this part, but loses their answers that have `told` in them.
    pub fn lose(&self, part: &str, told: &str, times: u32) {
        self.rules().losses.push((part.into(), told.into(), times));
    }

    /// How many answers are still to be lost.
    #[must_use]
    pub fn to_lose(&self) -> u32 {
        self.rules().losses.iter().map(|(.., left)| left).sum()
    }

    /// Lets requests whose line has this part stand still, once an answer to one of them had `told` in it.
    pub fn hold_after(&self, part: &str, told: &str) {
        self.rules().hold = Some((part.into(), told.into(), false));
    }

    /// Lets what stands still go on, and whatever comes after.
    pub fn release(&self) {
        self.rules().hold = None;
        self.released.notify_all();
    }

    /// How many requests with this part got through, and how many were refused.
    #[must_use]
    pub fn count(&self, part: &str) -> (usize, usize) {
        let rules = self.rules();
        let those = |lines: &[String]| lines.iter().filter(|line| line.contains(part)).count();
        (those(&rules.passed), those(&rules.refused))
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
