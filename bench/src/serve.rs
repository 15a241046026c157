//! Runs simulated servers in a separate process, so their cost is not counted as the client's.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rolldock::process::unix_seconds;
use rolldock::scope::Scope;
use rolldock_bench_rollouts::workload::{EOS, answers};
use rolldock_simengine::{
    Codec, Fault, LengthConfig, ServerConfig, SimServer, TextCodec, Workload, WorkloadConfig, http,
};

/// The number and the properties of the simulated servers.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Number of servers
    #[arg(long)]
    pub(crate) servers: usize,
    /// Tokens of every response
    #[arg(long)]
    pub(crate) tokens: u32,
    /// Maximum number of sequences that a server decodes concurrently
    #[arg(long)]
    pub(crate) max_num_seqs: u32,
    /// Real seconds that a simulated second takes
    #[arg(long)]
    pub(crate) time_scale: f64,
    /// Requests are accepted and never answered
    #[arg(long)]
    pub(crate) stall: bool,
}

/// The model's name.
pub(crate) const MODEL: &str = "bench";

/// Serves until standard input ends, which happens at the latest when the parent process ends.
pub(crate) fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let scope = Scope::new();
        for url in start(args, &scope).await? {
            println!("{url}");
        }
        println!();
        let parent_gone = scope.spawn_blocking("parent watch", || std::io::stdin().lines().count());
        parent_gone.await?;
        scope.close(Duration::from_secs(1)).await;
        Ok(())
    })
}

async fn start(args: &ServeArgs, scope: &Scope) -> anyhow::Result<Vec<String>> {
    let codec = TextCodec::builtin()?;
    let tokens = f64::from(args.tokens);
    let workload = Arc::new(Workload::new(WorkloadConfig {
        seed: 1,
        eos_id: EOS,
        vocab_size: codec.vocab_size(),
        filler_ids: codec.filler_ids(),
        length: LengthConfig {
            median_easy: tokens,
            median_hard: tokens,
            sigma: 0.0,
            wrong_factor: 1.0,
            min: args.tokens,
            max: args.tokens,
        },
        ..WorkloadConfig::default()
    }));
    let face: Arc<dyn Codec> = Arc::new(codec);
    let mut urls = Vec::new();
    for number in 0..args.servers {
        let config = ServerConfig {
            name: format!("s{number}"),
            model: MODEL.to_owned(),
            max_num_seqs: args.max_num_seqs,
            // The cache can hold every sequence at its full length, because preemption is not measured here.
            kv_blocks: args.max_num_seqs * (args.tokens / 16 + 128) + 4096,
            time_scale: args.time_scale,
            ..ServerConfig::default()
        };
        let token = scope.token().clone();
        let server = SimServer::start(config, Arc::clone(&workload), answers(), scope.tracker(), token)?;
        if args.stall {
            server.inject(Fault::Stall);
        }
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let started = unix_seconds();
        let token = scope.token().clone();
        let addr = http::serve(server, Arc::clone(&face), listener, started, scope.tracker(), token)?;
        urls.push(format!("http://{addr}"));
    }
    Ok(urls)
}

/// Servers in a child process, which ends when this value is dropped.
pub(crate) struct Served {
    pub(crate) urls: Vec<String>,
    child: Child,
}

impl Served {
    pub(crate) fn start(args: &ServeArgs) -> anyhow::Result<Self> {
        let mut arguments = vec!["serve".to_owned()];
        for (flag, value) in [
            ("--servers", args.servers.to_string()),
            ("--tokens", args.tokens.to_string()),
            ("--max-num-seqs", args.max_num_seqs.to_string()),
            ("--time-scale", args.time_scale.to_string()),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        if args.stall {
            arguments.push("--stall".to_owned());
        }
        Self::spawn(&arguments, args.servers)
    }

    /// Starts servers by a hidden sub-command of this program, which prints their URLs and an empty line.
    pub(crate) fn spawn(arguments: &[String], servers: usize) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments);
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.context("cannot start the servers")?;
        let stdout = child.stdout.take().context("the servers have no standard output")?;
        let lines = BufReader::new(stdout).lines();
        let urls: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        anyhow::ensure!(urls.len() == servers, "the servers did not start");
        Ok(Self { urls, child })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // An error only means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
