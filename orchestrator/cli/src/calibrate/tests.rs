use std::sync::Arc;

use rolldock_simengine::{
    Codec, NoAnswers, ServerConfig, SimServer, TextCodec, Workload, WorkloadConfig, http,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::rounds::Batch;
use super::*;

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
    let server = Server::open(&format!("http://{address}/"), None, 1, ANSWER_LIMIT).await.unwrap();
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
    let error = Server::open("http://127.0.0.1:1", None, 1, ANSWER_LIMIT).await.err().unwrap();
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
    let words = format!("{:#}", Server::open(&url, None, 1, ANSWER_LIMIT).await.err().unwrap());
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
        let server = Server::open(&format!("http://{address}"), None, salt, ANSWER_LIMIT).await.unwrap();
        server.batch(Batch { seqs: 4, prompt_tokens: 256, tokens: 2 }).await.unwrap();
    }
    end.cancel();
    let stats = simulated.stats();
    assert_eq!((stats.prompt_tokens_total, stats.prefix_cache_hits_total), (2 * 4 * 256, 0), "{stats:?}");
}

#[tokio::test]
async fn a_server_that_accepts_and_does_not_answer_is_named() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let limit = Duration::from_millis(50);
    let error = format!("{:#}", Server::open(&url, None, 1, limit).await.err().unwrap());
    assert!(error.contains(&format!("{url} did not answer GET /v1/models within 0.05 s")), "{error}");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_refused_before_the_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let args = |output: &str| CalibrateArgs {
        endpoint: "http://127.0.0.1:1".to_owned(),
        seconds: 60.0,
        max_batch: 64,
        output: folder.path().join(output),
        api_key: None,
    };
    // The server cannot be reached either, which would be found next.
    let error = format!("{:#}", run(args("absent/x.toml")).await.unwrap_err());
    assert!(error.starts_with("--output: cannot write ") && error.contains("absent/x.toml"), "{error}");
    let error = format!("{:#}", run(args("")).await.unwrap_err());
    assert!(error.starts_with("--output: cannot write "), "a folder: {error}");
    // A measurement that fails leaves an older result as it is, and no new file.
    std::fs::write(folder.path().join("old.toml"), "old").unwrap();
    for output in ["old.toml", "new.toml"] {
        let error = format!("{:#}", run(args(output)).await.unwrap_err());
        assert!(error.contains("cannot reach http://127.0.0.1:1"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("old.toml")).unwrap(), "old");
    assert!(!folder.path().join("new.toml").exists());
}
