use std::sync::Arc;

use rolldock_simengine::{
    Codec, NoAnswers, ServerConfig, SimServer, TextCodec, Workload, WorkloadConfig, http,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;

#[test]
fn batches_differ_in_size_and_fit_into_the_time() {
    let batches = batches(64, 0.02, 60.0, Some(4096));
    assert_eq!(batches.len(), 12);
    assert!(batches.iter().all(|batch| batch.seqs * batch.prompt_tokens <= PROMPT_TOKENS_MAX));
    let alone: f64 = batches.iter().map(|batch| f64::from(batch.tokens) * 0.02).sum();
    assert!(alone * 2.0 < 60.0 && alone * 12.0 > 60.0, "{alone}");
    // A model with a short context gets short prompts and responses.
    let short = super::batches(4, 0.02, 60.0, Some(64));
    assert!(short.iter().all(|batch| batch.prompt_tokens + batch.tokens <= 64), "{short:?}");
}

#[test]
fn the_median_is_the_middle_time_or_the_mean_of_the_middle_two() {
    assert_eq!(median(&mut []), None);
    assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
}

/// A simulated server in real time whose constants are known. Its times are so long that the delays of a busy
/// machine change the medians little.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_constants_of_a_simulated_server_are_found() {
    let truth = ServerConfig {
        prefill_ns_per_token: 1_000_000,
        decode_base_ns: 20_000_000,
        decode_ns_per_seq: 1_000_000,
        decode_ns_per_kv_token: 10_000,
        kv_blocks: 3_000,
        max_model_len: 4_000,
        ..ServerConfig::default()
    };
    let (tracker, end) = (TaskTracker::new(), CancellationToken::new());
    let workload = Arc::new(Workload::new(WorkloadConfig::default()));
    let server =
        SimServer::start(truth.clone(), workload, Arc::new(NoAnswers), &tracker, end.clone()).unwrap();
    let codec: Arc<dyn Codec> = Arc::new(TextCodec::builtin().unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = http::serve(server, codec, listener, 0, &tracker, end.clone()).unwrap();
    let server = Server::open(&format!("http://{address}/"), None, 1).await.unwrap();
    assert_eq!(server.facts.kv_blocks.zip(server.facts.block_tokens), Some((3_000, 16)));
    let calibration = calibrate(&server, Duration::from_secs(20), 16).await.unwrap();
    end.cancel();

    let model = calibration.model();
    let share = |found: Option<u64>, truth: u64| found.unwrap() as f64 / truth as f64;
    let table = calibration.table();
    for (found, truth, tolerance) in [
        (model.decode_base_ns, truth.decode_base_ns, 0.15),
        (model.prefill_ns_per_token, truth.prefill_ns_per_token, 0.15),
        (model.decode_ns_per_seq, truth.decode_ns_per_seq, 0.3),
    ] {
        assert!((share(found, truth) - 1.0).abs() < tolerance, "{model:?}\n{table}");
    }
    let text = calibration.to_toml();
    assert!(text.contains("kv_blocks = 3000") && text.contains("max_model_len = 4000"), "{text}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named() {
    let error = Server::open("http://127.0.0.1:1", None, 1).await.err().unwrap();
    assert!(format!("{error:#}").contains("cannot reach http://127.0.0.1:1"), "{error:#}");
}

#[tokio::test]
async fn a_server_that_is_no_vllm_is_told_from_one() {
    let (tracker, end) = (TaskTracker::new(), CancellationToken::new());
    let workload = Arc::new(Workload::new(WorkloadConfig::default()));
    let server =
        SimServer::start(ServerConfig::default(), workload, Arc::new(NoAnswers), &tracker, end.clone())
            .unwrap();
    let codec: Arc<dyn Codec> = Arc::new(TextCodec::builtin().unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = http::serve(server, codec, listener, 0, &tracker, end.clone()).unwrap();
    let url = format!("http://{address}/v1/models");
    let words = format!("{:#}", Server::open(&url, None, 1).await.err().unwrap());
    end.cancel();
    assert!(words.starts_with(&format!("expected the base URL of a vLLM server, found {url}: ")), "{words}");
    assert!(words.contains("404"), "{words}");
}

#[tokio::test]
async fn a_second_calibration_finds_no_prompt_of_the_first_in_the_cache() {
    let (tracker, end) = (TaskTracker::new(), CancellationToken::new());
    let workload = Arc::new(Workload::new(WorkloadConfig::default()));
    let config = ServerConfig { time_scale: 0.01, ..ServerConfig::default() };
    let simulated = SimServer::start(config, workload, Arc::new(NoAnswers), &tracker, end.clone()).unwrap();
    let codec: Arc<dyn Codec> = Arc::new(TextCodec::builtin().unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = http::serve(simulated.clone(), codec, listener, 0, &tracker, end.clone()).unwrap();
    for salt in [3_000_000, u64::MAX] {
        let server = Server::open(&format!("http://{address}"), None, salt).await.unwrap();
        server.batch(Batch { seqs: 4, prompt_tokens: 256, tokens: 2 }).await.unwrap();
    }
    end.cancel();
    let stats = simulated.stats();
    assert_eq!((stats.prompt_tokens_total, stats.prefix_cache_hits_total), (2 * 4 * 256, 0), "{stats:?}");
}
