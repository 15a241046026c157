//! A server that answers each request with the same prepared answer, in a separate process.
//!
//! The bytes are prepared before the first request, so the engine client is measured with as much data as it can
//! take. Probes of the engine client are answered as by a vLLM server with the dialect of the answer.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use rolldock::scope::Scope;
use tokio::net::TcpListener;

use crate::answering::{answer, answer_each};
use crate::serve::{MODEL, Served};
use rolldock_bench_answers::{Body, Face};

/// Requests of the probe are shorter than this, and other requests are longer.
const PROBE_BYTES_MAX: usize = 512;

/// The answer that is replayed.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReplayArgs {
    /// Endpoint of the answer
    #[arg(long)]
    pub(crate) face: Face,
    /// Tokens of the answer
    #[arg(long)]
    pub(crate) tokens: usize,
}

impl ReplayArgs {
    /// Starts the server in a child process.
    pub(super) fn start(&self) -> anyhow::Result<Served> {
        let face = self.face.to_possible_value().context("the endpoint has no name")?;
        let tokens = self.tokens.to_string();
        Served::spawn(&["replay", "--face", face.get_name(), "--tokens", &tokens].map(str::to_owned), 1)
    }
}

/// The possible answers, each with its head.
struct Answers {
    face: Face,
    models: Vec<u8>,
    version: Vec<u8>,
    absent: Vec<u8>,
    refused: Vec<u8>,
    one_token: Vec<u8>,
    recorded: Vec<u8>,
}

impl Answers {
    fn new(args: &ReplayArgs) -> anyhow::Result<Self> {
        let one_token = "{\"choices\":[{\"index\":0,\"text\":\"a\",\"logprobs\":{\"token_logprobs\":[-0.5]},\
                         \"finish_reason\":\"length\",\"token_ids\":[7],\"prompt_token_ids\":[1]}]}";
        let models = format!("{{\"data\":[{{\"id\":\"{MODEL}\",\"max_model_len\":131072}}]}}");
        Ok(Self {
            face: args.face,
            models: answer("200 OK", models.as_bytes()),
            version: answer("200 OK", b"{\"version\":\"0.32.0\"}"),
            absent: answer("404 Not Found", b"{\"detail\":\"Not Found\"}"),
            refused: answer("400 Bad Request", b"{\"error\":{\"message\":\"token_ids is missing\"}}"),
            one_token: answer("200 OK", one_token.as_bytes()),
            recorded: answer("200 OK", &Body::new(args.face, args.tokens)?.text),
        })
    }

    fn of(&self, path: &str, body_bytes: usize) -> &[u8] {
        let is_probe = body_bytes < PROBE_BYTES_MAX;
        match (path, self.face) {
            ("/v1/models", _) => &self.models,
            ("/version", _) => &self.version,
            ("/inference/v1/generate", Face::Generate) if is_probe => &self.refused,
            ("/v1/completions", Face::Completions) if is_probe => &self.one_token,
            (path, face) if path == face.path() => &self.recorded,
            _ => &self.absent,
        }
    }
}

/// Serves until standard input ends, which happens at the latest when the parent process ends.
pub(crate) fn serve(args: &ReplayArgs) -> anyhow::Result<()> {
    let answers = Arc::new(Answers::new(args)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let scope = Scope::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("http://{}\n", listener.local_addr()?);
        let parent_gone = scope.spawn_blocking("parent watch", || std::io::stdin().lines().count());
        let connections = scope.child();
        let accepting = scope.spawn("replay", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answers = Arc::clone(&answers);
                connections.spawn_detached("replay", async move {
                    // An error only means that the client has closed the connection.
                    let _ = answer_each(stream, |path, body| Ok(answers.of(path, body.len()))).await;
                });
            }
        });
        parent_gone.await?;
        drop(accepting);
        scope.close(Duration::from_millis(100)).await;
        Ok(())
    })
}
