use rolldock_scope::Scope;
use rolldock_simengine::{Fault, NoAnswers, PauseMode, ServerConfig, Workload, WorkloadConfig};

use super::*;
use crate::{Admission, Generated, SamplingParams};

fn fleet(scope: &Scope, names: &[&str]) -> SimulatedEngine {
    let workload = Arc::new(Workload::new(WorkloadConfig::default()));
    SimulatedEngine::new(names.iter().map(|name| {
        let config = ServerConfig { name: (*name).to_owned(), ..ServerConfig::default() };
        let tracker = scope.tracker().clone();
        SimServer::start(config, Arc::clone(&workload), Arc::new(NoAnswers), &tracker, scope.token().clone())
            .unwrap()
    }))
}

fn request(n: u32, seed: u64) -> GenerateRequest {
    let sampling = SamplingParams { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: vec![] };
    GenerateRequest {
        request_id: format!("r-{seed}").into(),
        prompt_ids: (10..50).collect(),
        prompt_text: "".into(),
        n,
        seed,
        max_tokens: 512,
        sampling: Arc::new(sampling),
        progress: None,
        stream: false,
        resumed: None,
        cache_salt: None,
    }
}

fn reference(name: &str) -> ServerRef {
    ServerRef { name: name.into(), url: None }
}

#[tokio::test(start_paused = true)]
async fn one_request_of_n_and_n_requests_of_one_on_any_server_give_the_same_samples() {
    let scope = Scope::new();
    let engine = fleet(&scope, &["a", "b"]);
    let together = engine.generate("a", request(3, 70)).await.unwrap();
    for (seed, sample) in (70..).zip(&together.samples) {
        let alone = engine.generate("b", request(1, seed)).await.unwrap();
        assert_eq!(alone.samples[0].response_ids, sample.response_ids);
        assert_eq!(alone.samples[0].logprobs, sample.logprobs);
        assert_eq!(sample.version_spans.last().unwrap().end as usize, sample.response_ids.len());
    }
}

#[tokio::test(start_paused = true)]
async fn the_tokens_of_requests_without_an_answer_are_known() {
    let scope = Scope::new();
    let engine = fleet(&scope, &["a"]);
    let server = engine.server("a").unwrap();
    let progress = Progress::new();
    let asked = |seed: u64| GenerateRequest { progress: Some(progress.clone()), ..request(4, seed) };
    let dropped = tokio::time::timeout(Duration::from_millis(300), engine.generate("a", asked(1))).await;
    assert!(dropped.is_err());
    let before = server.stats().generation_tokens_total;
    assert!(before > 0);
    assert_eq!(progress.generated(), Generated { tokens: Some(before), ..Generated::default() });
    server.inject(Fault::Reset { share: 1.0 });
    let lost = engine.generate("a", asked(2)).await.unwrap_err();
    assert!(matches!(lost, EngineError::Failed { .. }), "{lost}");
    let tokens = server.stats().generation_tokens_total - before;
    assert_eq!(
        progress.generated(),
        Generated { tokens: Some(tokens), is_whole: true, ..Generated::default() }
    );
}

#[tokio::test(start_paused = true)]
async fn dropping_a_request_frees_its_places_and_control_sees_it() {
    let scope = Scope::new();
    let engine = fleet(&scope, &["a"]);
    let waiting = tokio::time::timeout(Duration::from_millis(50), async {
        tokio::join!(engine.generate("a", request(4, 1)), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let load = engine.load(&reference("a")).await.unwrap();
            assert_eq!((load.running, load.paused), (4, Some(false)));
        })
    });
    assert!(waiting.await.is_err(), "four long samples do not end within 50 ms");
    assert_eq!(engine.load(&reference("a")).await.unwrap().running, 0);
}

#[tokio::test(start_paused = true)]
async fn faults_and_pauses_become_the_errors_of_a_real_server() {
    let scope = Scope::new();
    let engine = fleet(&scope, &["a"]);
    let server = engine.server("a").unwrap();
    server.inject(Fault::Nan { share: 1.0 });
    let poisoned = engine.generate("a", request(1, 1)).await.unwrap_err();
    assert!(
        matches!(&poisoned, EngineError::BadAnswer { reason, .. } if reason.contains("poisoned")),
        "{poisoned}"
    );
    server.heal();

    let (aborted, ()) = tokio::join!(engine.generate("a", request(2, 1)), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.pause(PauseMode::Abort).await;
        server.resume();
    });
    assert!(matches!(aborted, Err(EngineError::Aborted { tokens: 1.., .. })), "{aborted:?}");

    server.inject(Fault::Die);
    let dead = engine.generate("a", request(1, 1)).await.unwrap_err();
    assert!(matches!(dead, EngineError::Failed { .. } | EngineError::Unreachable { .. }), "{dead}");
    assert!(engine.health(&reference("a")).await.is_err());
    assert!(engine.health(&reference("b")).await.is_err());
    let unknown = engine.generate("b", request(1, 1)).await.unwrap_err();
    assert_eq!(unknown.admission(), Admission::Never);
}
