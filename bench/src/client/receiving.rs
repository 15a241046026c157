//! The CPU time of a request with the engine client, and with a client that receives the same bytes and drops
//! them.
//!
//! The bare client does the least that a client can do: it writes a prebuilt request, reads the length
//! of the answer from its head, and reads that many bytes into one buffer. Both clients run the same number
//! of requests at a time, in turns, against the same server, which is another process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use memchr::memmem;
use rolldock::engine::Engine;
use rolldock::engine::http::HttpEngine;
use rolldock::scope::Scope;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::reading::{LENGTHS, median};
use super::replay::ReplayArgs;
use super::{connect, request};
use rolldock_bench_answers::{Body, Face};
use rolldock_bench_figures::cpu;
use rolldock_bench_figures::{Bar, Figure};

/// Number of requests that run at a time.
const CONNECTIONS: usize = 32;
/// Number of requests that each connection sends in a round.
const REQUESTS: usize = 4;
/// Maximum number of bytes that the bare client reads at a time.
const BUFFER_BYTES: usize = 64 << 10;

pub(super) async fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let rounds = if quick { 5 } else { 15 };
    let mut figures = Vec::new();
    for face in Face::ALL {
        for tokens in LENGTHS {
            let body = Body::new(face, tokens)?;
            let served = ReplayArgs { face, tokens }.start()?;
            let scope = Scope::new();
            let engine = Arc::new(connect(&served.urls, &scope).await?);
            let authority = served.urls[0].strip_prefix("http://").context("the server's URL is not HTTP")?;
            let mut bare_ms = Vec::new();
            let mut our_ms = Vec::new();
            for _ in 0..rounds {
                bare_ms.push(bare(authority, &body, &scope).await?);
                our_ms.push(ours(&engine, &body, &scope).await?);
            }
            scope.close(Duration::from_secs(1)).await;
            let bytes = body.text.len();
            let name = format!("{}, {tokens} tokens, {bytes} bytes: CPU of a request", face.path());
            let figure = Figure::new(name, median(our_ms), "ms");
            let figure = figure.against_named("the bytes are received and dropped", median(bare_ms));
            figures.push(figure.bar(Bar::RatioAtMost(3.0)));
        }
    }
    Ok(figures)
}

/// CPU milliseconds of a request with the engine client.
async fn ours(engine: &Arc<HttpEngine>, body: &Body, scope: &Scope) -> anyhow::Result<f64> {
    let tokens = body.columns.ids.len();
    per_request(scope, |connection| {
        let engine = Arc::clone(engine);
        let prompt_ids = body.prompt_ids.clone();
        async move {
            for number in 0..REQUESTS {
                let number = (connection * REQUESTS + number) as u64;
                let generation = engine.generate("0", request(&prompt_ids, tokens as u32, number)).await?;
                let found = generation.samples[0].response_ids.len();
                anyhow::ensure!(found == tokens, "{found} tokens");
            }
            Ok(())
        }
    })
    .await
}

/// CPU milliseconds of a request whose answer is dropped as it arrives.
async fn bare(authority: &str, body: &Body, scope: &Scope) -> anyhow::Result<f64> {
    let ids = serde_json::to_string(&body.prompt_ids)?;
    let path = body.face.path();
    let length = ids.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-length: {length}\r\n\r\n");
    let asked: Arc<[u8]> = format!("{head}{ids}").into_bytes().into();
    per_request(scope, |_| {
        let (asked, authority) = (Arc::clone(&asked), authority.to_owned());
        async move {
            let mut stream = TcpStream::connect(authority).await?;
            stream.set_nodelay(true)?;
            let mut buffer = vec![0; BUFFER_BYTES];
            for _ in 0..REQUESTS {
                stream.write_all(&asked).await?;
                receive(&mut stream, &mut buffer).await?;
            }
            Ok(())
        }
    })
    .await
}

/// Receives an answer and drops it.
async fn receive(stream: &mut TcpStream, buffer: &mut [u8]) -> anyhow::Result<()> {
    let mut received = 0;
    let whole = loop {
        let count = stream.read(&mut buffer[received..]).await?;
        anyhow::ensure!(count > 0, "the connection was closed");
        received += count;
        if let Some(at) = memmem::find(&buffer[..received], b"\r\n\r\n") {
            let head = std::str::from_utf8(&buffer[..at])?;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.context("the answer has no length")?.parse()?;
            break at + 4 + length;
        }
    };
    while received < whole {
        let count = stream.read(buffer).await?;
        anyhow::ensure!(count > 0, "the connection was closed");
        received += count;
    }
    Ok(())
}

/// Runs the requests of all connections, and returns the CPU milliseconds of this process per request.
async fn per_request<F>(scope: &Scope, requests: impl Fn(usize) -> F) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let started = cpu::own();
    let connections: Vec<_> =
        (0..CONNECTIONS).map(|connection| scope.spawn("client", requests(connection))).collect();
    for connection in connections {
        connection.await??;
    }
    Ok((cpu::own() - started).as_secs_f64() * 1e3 / (CONNECTIONS * REQUESTS) as f64)
}
