//! `rolldock simengine`

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rolldock_cli::args::SimengineArgs;
use rolldock_cli::sendable;
use rolldock_simengine::{
    AnswerKey, Codec, GuessingKey, Script, ServerConfig, SimServer, TextCodec as SimTextCodec, http,
};

use crate::data::{
    CodecConfig, Dataset, DatasetConfig, Duplicates, OverlongPrompts, PromptSource, TemplateChoice, TextCodec,
};
use crate::process::{Endings, say, unix_seconds};
use crate::run::{GrowingKey, open_sim_codec, simulated_workload};
use crate::scope::Scope;

pub(super) async fn serve(args: SimengineArgs) -> anyhow::Result<()> {
    sendable("--api-key", args.api_key.as_deref())?;
    let scope = Scope::new();
    let codec = TextCodec::open(&CodecConfig {
        tokenizer: args.tokenizer.clone(),
        chat_template: TemplateChoice::Auto,
        unix_seconds: None,
    })?;
    let sim_codec = Arc::new(open_sim_codec(&args.tokenizer, &codec)?);
    let script = args.script.as_deref().map(|file| read_script(file, &sim_codec)).transpose()?;
    let own_end = codec.eos_ids().first().copied().unwrap_or(0);
    let eos_id = script.as_ref().and_then(Script::end_id).unwrap_or(own_end);
    let known = learn(&args, codec)?;
    let workload = Arc::new(simulated_workload(&sim_codec, eos_id, args.seed, args.mean_response_length));
    let face: Arc<dyn Codec> = sim_codec;
    let key: Arc<dyn AnswerKey> = match script {
        Some(script) => Arc::new(script),
        None => Arc::new(GuessingKey::new(Arc::new(known), Arc::clone(&face))),
    };
    for port in &args.ports {
        let config = ServerConfig {
            name: format!("sim-{port}"),
            model: args.model.clone(),
            max_num_seqs: args.max_num_seqs,
            queue_max: args.max_num_queued_reqs,
            time_scale: args.time_scale,
            scale_out: !args.no_scale_out,
            api_key: args.api_key.clone(),
            ..ServerConfig::default()
        };
        let server = SimServer::start(
            config,
            Arc::clone(&workload),
            Arc::clone(&key),
            scope.tracker(),
            scope.token().clone(),
        )?;
        let address = SocketAddr::new(args.host, *port);
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen at {address}"))?;
        let started = unix_seconds();
        let bound = http::serve(
            server,
            Arc::clone(&face),
            listener,
            started,
            scope.tracker(),
            scope.token().clone(),
        )?;
        say(&format!("http://{bound} serves {}", args.model));
    }
    Endings::listen()?.asked().await;
    scope.close(Duration::from_secs(5)).await;
    Ok(())
}

fn read_script(file: &Path, codec: &SimTextCodec) -> anyhow::Result<Script> {
    let json = std::fs::read(file).with_context(|| format!("cannot read the script {}", file.display()))?;
    Script::from_json(&json, codec).with_context(|| format!("{}", file.display()))
}

/// Reads the answers to all prompts of the data.
fn learn(args: &SimengineArgs, codec: TextCodec) -> anyhow::Result<GrowingKey> {
    // The scorer that will grade the answers is not known here, so the answers get a form that all scorers
    // read.
    let key = GrowingKey::for_scorer("any");
    if args.data.is_empty() {
        return Ok(key);
    }
    let dataset = Dataset::open(DatasetConfig {
        files: args.data.clone(),
        columns: None,
        max_prompt_length: usize::MAX,
        overlong_prompts: OverlongPrompts::Drop,
        duplicates: Duplicates::Drop,
        shuffle: false,
        seed: 0,
        epochs: Some(1),
    })?;
    let codec = Arc::new(codec);
    let mut prompts = dataset.pass(Arc::clone(&codec));
    while let Some(prompt) = prompts.next()? {
        key.learn(&prompt, &codec);
    }
    tracing::info!(rows = dataset.rows(), "answers are known");
    Ok(key)
}
