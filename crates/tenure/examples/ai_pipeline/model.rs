//! The vendor: a model behind HTTP on loopback, and the client for it. It is slow, costs money,
//! refuses, fails and loses answers, always at the same numbers of calls, so that all runs are
//! alike. A call with a key is charged once; a repeated call gets the same answer.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use tenure::Token;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) const EMBED_CENTS: u32 = 1;
pub(crate) const SUMMARY_CENTS: u32 = 10;

// ── the client

/// The client of the model.
pub(crate) struct Model(String);

/// Why there is no answer.
pub(crate) enum Trouble {
    TooManyRequests { after: Duration },
    NotNow(String),
}

/// Which call of which attempt at which document this is, counted from 1.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) document: u32,
    pub(crate) token: Token,
    pub(crate) call: u32,
}

impl Model {
    pub(crate) fn at(address: &str) -> Model {
        Model(address.to_owned())
    }

    pub(crate) async fn embed(&self, place: Place, chunk: &str) -> Result<String, Trouble> {
        self.post("/embed", place, "", chunk).await
    }

    pub(crate) async fn summarise(
        &self,
        place: Place,
        vectors: &[String],
        key: &str,
    ) -> Result<String, Trouble> {
        self.post("/summarise", place, key, &vectors.join("\n")).await
    }

    async fn post(&self, path: &str, at: Place, key: &str, body: &str) -> Result<String, Trouble> {
        let (Place { document, token, call }, length) = (at, body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {length}\r\n\
             Idempotency-Key: {key}\r\nPlace: {document} {token} {call}\r\n\r\n{body}",
            self.0
        );
        let mut socket = TcpStream::connect(&self.0).await?;
        socket.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        socket.read_to_string(&mut response).await?;
        let (head, body) = response.split_once("\r\n\r\n").unwrap_or_default();
        let retry_after = head.lines().find_map(|line| line.strip_prefix("Retry-After: "));
        match (head.split(' ').nth(1), retry_after.and_then(|seconds| seconds.parse().ok())) {
            (Some("200"), _) => Ok(body.to_owned()),
            (Some("429"), Some(seconds)) => {
                Err(Trouble::TooManyRequests { after: Duration::from_secs(seconds) })
            }
            (Some(status), _) => Err(Trouble::NotNow(format!("the model answered {status}"))),
            (None, _) => Err(Trouble::NotNow("the model did not answer".into())),
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::NotNow(error.to_string())
    }
}

// ── the server

/// Counts the calls and the costs.
#[derive(Default)]
pub(crate) struct Meter {
    pub(crate) calls: u64,
    pub(crate) cents: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) lost: u64,
    /// The answers by key.
    answered: HashMap<String, String>,
    /// The furthest call of each attempt at each document.
    furthest: HashMap<(String, String), u64>,
}

/// The server's reply to a call.
enum Reply {
    Answer { body: String, takes: Duration },
    TooManyRequests,
    Failure,
    HangUp,
}

impl Meter {
    /// How many calls there would be without remembered steps: every attempt would repeat all
    /// calls, up to the last one it made.
    pub(crate) fn calls_without_memory(&self) -> u64 {
        self.furthest.values().sum()
    }

    fn decide(&mut self, path: &str, headers: &HashMap<String, String>, body: &str) -> Reply {
        self.calls += 1;
        self.note_place(headers);
        let key = headers.get("Idempotency-Key").filter(|key| !key.is_empty());
        if let Some(known) = key.and_then(|key| self.answered.get(key)) {
            return Reply::Answer { body: known.clone(), takes: Duration::ZERO };
        }
        if self.calls.is_multiple_of(17) {
            self.refused += 1;
            return Reply::TooManyRequests;
        }
        if self.calls.is_multiple_of(23) {
            self.failed += 1;
            return Reply::Failure;
        }
        let (cents, body) = match path {
            "/summarise" => (SUMMARY_CENTS, format!("{} chunks in one word", body.lines().count())),
            _ => (EMBED_CENTS, format!("[{}]", body.len())),
        };
        self.cents += u64::from(cents);
        if let Some(key) = key {
            self.answered.insert(key.clone(), body.clone());
            // The worst case: the work is done and paid for, and the answer is lost.
            if self.answered.len().is_multiple_of(5) {
                self.lost += 1;
                return Reply::HangUp;
            }
        }
        let takes = if self.calls.is_multiple_of(11) { 150 } else { 15 };
        Reply::Answer { body, takes: Duration::from_millis(takes) }
    }

    fn note_place(&mut self, headers: &HashMap<String, String>) {
        let place: Vec<&str> = headers.get("Place").map_or("", |place| place).split(' ').collect();
        if let [document, token, call] = place.as_slice() {
            let attempt = (String::from(*document), String::from(*token));
            let furthest = self.furthest.entry(attempt).or_default();
            *furthest = call.parse().map_or(*furthest, |call: u64| call.max(*furthest));
        }
    }
}

/// Serves in the background. Returns its address and the meter.
pub(crate) async fn serve() -> io::Result<(String, watch::Receiver<Meter>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let (meter, seen) = watch::channel(Meter::default());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let meter = meter.clone();
            // A caller that was killed cannot receive the answer.
            tokio::spawn(async move { drop(answer(socket, &meter).await) });
        }
    });
    Ok((address, seen))
}

async fn answer(socket: TcpStream, meter: &watch::Sender<Meter>) -> io::Result<()> {
    let mut socket = BufReader::new(socket);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).await? == 0 {
            return Ok(()); // the client left before it sent a request
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let headers = lines.iter().filter_map(|line| line.split_once(": "));
    let headers: HashMap<_, _> = headers.map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let length = headers.get("Content-Length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await?;

    let path = lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let body = String::from_utf8_lossy(&body);
    let mut reply = Reply::HangUp;
    meter.send_modify(|meter| reply = meter.decide(path, &headers, &body));
    let response = match reply {
        Reply::Answer { body, takes } => {
            tokio::time::sleep(takes).await;
            format!("200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        }
        Reply::TooManyRequests => "429 Too Many Requests\r\nRetry-After: 1\r\n\r\n".to_owned(),
        Reply::Failure => "500 Internal Server Error\r\n\r\n".to_owned(),
        Reply::HangUp => return Ok(()),
    };
    socket.write_all(format!("HTTP/1.1 {response}").as_bytes()).await
}
