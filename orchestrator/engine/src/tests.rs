#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

//! Tests of both engines with the simulation: over loopback sockets in each dialect, and in process on a
//! paused clock.

use rolldock_scope::Scope;
use rolldock_simengine::http::serve;
use rolldock_simengine::{
    Fault, LengthConfig, NoAnswers, PauseMode, ServerConfig, SimServer, TextCodec, Workload, WorkloadConfig,
};
use tokio::net::TcpListener;

use super::http::{Dialect, HttpConfig, HttpEngine};
use super::simulated::SimulatedEngine;
use super::*;

/// Longer than every test takes, so a hang is a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// Samples have about 1,500 tokens, which take seconds of simulated time.
fn server(scope: &Scope, name: &str, change: impl FnOnce(&mut ServerConfig)) -> SimServer {
    let length = LengthConfig { min: 1_000, max: 2_000, ..LengthConfig::default() };
    let workload = Workload::new(WorkloadConfig { length, ..WorkloadConfig::default() });
    let mut config = ServerConfig { name: name.to_owned(), ..ServerConfig::default() };
    change(&mut config);
    let (tracker, token) = (scope.tracker(), scope.token().clone());
    SimServer::start(config, Arc::new(workload), Arc::new(NoAnswers), tracker, token).unwrap()
}

fn request(id: &str, n: u32, seed: u64) -> GenerateRequest {
    let sampling = SamplingParams { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: vec![] };
    GenerateRequest {
        request_id: id.into(),
        prompt_ids: (10..50).collect(),
        prompt_text: "".into(),
        n,
        seed,
        max_tokens: 1_800,
        sampling: Arc::new(sampling),
        progress: Some(Progress::new()),
        stream: false,
        resumed: None,
        cache_salt: Some("v1".into()),
    }
}

/// An engine in front of one simulated server called "s".
struct Fixture {
    scope: Scope,
    server: SimServer,
    engine: Arc<dyn Engine>,
}

/// A fixture over a socket, `speed` times as fast as a real server.
async fn over_http(dialect: Dialect, speed: f64) -> Fixture {
    let scope = Scope::new();
    let server = server(&scope, "s", |config| {
        config.time_scale = 1.0 / speed;
        config.scale_out = dialect == Dialect::Generate;
    });
    let config = HttpConfig {
        model: server.config().model.clone(),
        api_key: None,
        connect_max: PATIENCE,
        probe_max: PATIENCE,
        vocab_size: None,
        body_bytes_max: 64 << 20,
    };
    let codec = Arc::new(TextCodec::builtin().unwrap());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (tracker, token) = (scope.tracker(), scope.token().clone());
    let addr = serve(server.clone(), codec, listener, 1_700_000_000, tracker, token).unwrap();
    let engine = HttpEngine::new(config, None, scope.clone()).unwrap();
    let facts = engine.add("s", &format!("http://{addr}")).await.unwrap();
    assert_eq!(facts.dialect, dialect);
    Fixture { scope, server, engine: Arc::new(engine) }
}

fn in_process() -> Fixture {
    let scope = Scope::new();
    let server = server(&scope, "s", |_| {});
    let engine = Arc::new(SimulatedEngine::new([server.clone()]));
    Fixture { scope, server, engine }
}

impl Fixture {
    async fn generate(&self, request: GenerateRequest) -> Result<Generation, EngineError> {
        let generating = self.engine.generate("s", request);
        tokio::time::timeout(PATIENCE, generating).await.expect("the request hangs")
    }

    /// Waits until the samples have some tokens, and then pauses the engine.
    async fn freeze(&self, before: u64, tokens: u64) {
        while self.server.stats().generation_tokens_total < before + tokens {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.server.pause(PauseMode::Keep).await;
    }
}

fn assert_prefixes(parts: &[PartialOutput], whole: &Generation) {
    assert_eq!(parts.len(), whole.samples.len());
    for (part, sample) in parts.iter().zip(&whole.samples) {
        assert!(sample.response_ids.starts_with(&part.response_ids));
        assert!(sample.logprobs.starts_with(&part.logprobs));
        assert_eq!(part.logprobs.len(), part.response_ids.len());
        assert!(!part.response_ids.is_empty());
        assert!(part.response_ids.len() < sample.response_ids.len());
        assert_eq!(part.finish_reason, None);
    }
}

async fn check_streamed_is_whole(fixture: &Fixture) {
    let asked = request("r-1", 3, 7);
    let whole = fixture.generate(asked.clone()).await.unwrap();
    assert!(asked.progress.as_ref().unwrap().take().is_empty());
    let streamed = GenerateRequest { stream: true, ..request("r-2", 3, 7) };
    let progress = streamed.progress.clone().unwrap();
    assert_eq!(fixture.generate(streamed).await.unwrap(), whole);
    assert!(progress.take().is_empty());
}

/// An interrupt in the middle of a request gives the tokens so far, with and without streaming.
async fn check_interrupts(fixture: &Fixture, has_spans: bool) {
    let whole = fixture.generate(request("whole", 2, 7)).await.unwrap();
    for stream in [false, true] {
        let asked = GenerateRequest { stream, ..request(&format!("cut-{stream}"), 2, 7) };
        let (id, progress) = (Arc::clone(&asked.request_id), asked.progress.clone().unwrap());
        let before = fixture.server.stats().generation_tokens_total;
        let (answer, ()) = tokio::join!(fixture.generate(asked), async {
            fixture.freeze(before, 200).await;
            fixture.engine.interrupt("s", &id).await;
        });
        fixture.server.resume();
        let Err(EngineError::Aborted { tokens, .. }) = answer else { panic!("{answer:?}") };
        let parts = progress.take();
        assert_prefixes(&parts, &whole);
        assert_eq!(parts.iter().map(|part| part.response_ids.len() as u64).sum::<u64>(), tokens);
        assert!(tokens >= 200);
        assert!(parts.iter().all(|part| part.version_spans.is_empty() != has_spans));
    }
}

/// If a server dies, the tokens after the last chunk are lost. Without streaming, all tokens are lost.
async fn check_deaths(fixture: &Fixture) {
    let whole = fixture.generate(request("whole", 2, 7)).await.unwrap();
    for stream in [true, false] {
        let asked = GenerateRequest { stream, ..request(&format!("dies-{stream}"), 2, 7) };
        let progress = asked.progress.clone().unwrap();
        let before = fixture.server.stats().generation_tokens_total;
        let (answer, ()) = tokio::join!(fixture.generate(asked), async {
            let some =
                |parts: &mut Vec<PartialOutput>| parts.iter().all(|part| !part.response_ids.is_empty());
            while stream && !(progress.tokens() > 100 && progress.with(some)) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            fixture.freeze(before, 200).await;
            fixture.server.inject(Fault::Die);
        });
        assert!(matches!(answer, Err(EngineError::Failed { .. })), "{answer:?}");
        let parts = progress.take();
        if stream {
            assert_prefixes(&parts, &whole);
            assert!(parts.iter().all(|part| part.version_spans.is_empty()));
        } else {
            assert!(parts.is_empty());
        }
        fixture.server.heal();
    }
}

/// An interrupt at the same time as its request is lost at first. A later repetition takes effect.
async fn check_early_interrupts(fixture: &Fixture) {
    for (number, stream) in [false, true].into_iter().enumerate() {
        let asked = GenerateRequest { stream, ..request(&format!("early-{number}"), 1, 7) };
        let id = Arc::clone(&asked.request_id);
        let (answer, ()) = tokio::join!(fixture.generate(asked), fixture.engine.interrupt("s", &id));
        assert!(matches!(answer, Err(EngineError::Aborted { .. })), "{answer:?}");
    }
    // There is nothing to interrupt, and the call still ends.
    let idle = fixture.engine.interrupt("s", &"nobody".into());
    tokio::time::timeout(PATIENCE, idle).await.expect("the interrupt hangs");
    fixture.engine.interrupt("nowhere", &"nobody".into()).await;
}

#[tokio::test]
async fn over_http_a_streamed_answer_is_the_whole_one() {
    for dialect in [Dialect::Generate, Dialect::Completions] {
        check_streamed_is_whole(&over_http(dialect, 100.0).await).await;
    }
}

#[tokio::test]
async fn over_http_an_interrupt_gives_a_prefix() {
    check_interrupts(&over_http(Dialect::Generate, 20.0).await, true).await;
    check_interrupts(&over_http(Dialect::Completions, 20.0).await, false).await;
}

/// The protocol cannot mark a request that continues a sample. The simulation recognises such a request.
#[tokio::test]
async fn over_http_a_sample_that_was_cut_goes_on_too() {
    let fixture = over_http(Dialect::Generate, 20.0).await;
    let whole = fixture.generate(request("whole", 1, 7)).await.unwrap().samples.remove(0);
    let asked = request("cut", 1, 7);
    let (id, progress) = (Arc::clone(&asked.request_id), asked.progress.clone().unwrap());
    let before = fixture.server.stats().generation_tokens_total;
    let (answer, ()) = tokio::join!(fixture.generate(asked.clone()), async {
        fixture.freeze(before, 200).await;
        fixture.engine.interrupt("s", &id).await;
    });
    assert!(matches!(answer, Err(EngineError::Aborted { .. })), "{answer:?}");
    fixture.server.resume();
    let part = progress.take().remove(0);
    let rest = GenerateRequest {
        request_id: "rest".into(),
        prompt_ids: asked.prompt_ids.iter().chain(&part.response_ids).copied().collect(),
        max_tokens: asked.max_tokens - part.response_ids.len() as u32,
        seed: 99,
        ..asked
    };
    let rest = fixture.generate(rest).await.unwrap().samples.remove(0);
    assert_eq!([part.response_ids, rest.response_ids].concat(), whole.response_ids);
    assert_eq!([part.logprobs, rest.logprobs].concat(), whole.logprobs);
    assert_eq!(rest.finish_reason, whole.finish_reason);
}

#[tokio::test]
async fn over_http_a_death_in_a_stream_leaves_a_prefix() {
    for dialect in [Dialect::Generate, Dialect::Completions] {
        check_deaths(&over_http(dialect, 20.0).await).await;
    }
}

#[tokio::test]
async fn over_http_an_interrupt_that_comes_too_early_is_repeated() {
    // The server has the speed of a real server, so the answers would take ten seconds.
    for dialect in [Dialect::Generate, Dialect::Completions] {
        check_early_interrupts(&over_http(dialect, 1.0).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn in_process_interrupts_and_streams_behave_as_over_http() {
    let fixture = in_process();
    check_streamed_is_whole(&fixture).await;
    check_interrupts(&fixture, true).await;
    check_early_interrupts(&fixture).await;
    check_deaths(&fixture).await;
    assert!(fixture.scope.close(PATIENCE).await);
}

#[tokio::test(start_paused = true)]
async fn invalid_numbers_leave_no_tokens() {
    let fixture = in_process();
    fixture.server.inject(Fault::Nan { share: 1.0 });
    let asked = GenerateRequest { stream: true, ..request("r", 1, 7) };
    let progress = asked.progress.clone().unwrap();
    let (answer, ()) = tokio::join!(fixture.generate(asked), async {
        fixture.freeze(0, 200).await;
        fixture.server.inject(Fault::Die);
    });
    assert!(matches!(answer, Err(EngineError::Failed { .. })), "{answer:?}");
    assert!(progress.take().is_empty());
}

/// After each cut, the next server generates the rest of the sample. Returns the whole sample.
async fn run_in_pieces(engine: &SimulatedEngine, seed: u64, stream: bool) -> (SampleOutput, u32) {
    let whole = request("unused", 1, seed);
    let mut sample = PartialOutput::default();
    let mut cuts = 0;
    loop {
        let tokens = sample.response_ids.len() as u32;
        let name = if cuts % 2 == 0 { "a" } else { "b" };
        let progress = Progress::new();
        let asked = GenerateRequest {
            request_id: format!("{seed}-{stream}-{cuts}").into(),
            prompt_ids: whole.prompt_ids.iter().chain(&sample.response_ids).copied().collect(),
            max_tokens: whole.max_tokens - tokens,
            // Each segment has its own seed, but `resumed` determines how the sample continues.
            seed: seed + 1_000 * u64::from(cuts),
            resumed: (cuts > 0).then_some(Resumed { tokens, seed }),
            progress: Some(progress.clone()),
            stream,
            ..whole.clone()
        };
        let id = Arc::clone(&asked.request_id);
        let wait = Duration::from_millis(500 + (seed * 7_919 + u64::from(cuts) * 104_729) % 3_000);
        let generating = engine.generate(name, asked);
        let (answer, ()) = tokio::join!(generating, async {
            tokio::time::sleep(wait).await;
            engine.interrupt(name, &id).await;
        });
        match answer {
            Ok(generation) => {
                let last = generation.samples.into_iter().next().unwrap();
                assert_eq!(last.version_spans[0].start, 0);
                sample.response_ids.extend(last.response_ids);
                sample.logprobs.extend(last.logprobs);
                sample.finish_reason = Some(last.finish_reason);
                return (SampleOutput::finished(sample).unwrap(), cuts);
            }
            Err(EngineError::Aborted { .. }) => {
                let part = progress.take().into_iter().next().unwrap();
                assert_eq!(part.version_spans[0].start, 0);
                sample.response_ids.extend(part.response_ids);
                sample.logprobs.extend(part.logprobs);
                cuts += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_sample_that_is_cut_and_resumed_is_the_one_that_was_begun() {
    let scope = Scope::new();
    let engine = SimulatedEngine::new(["a", "b"].map(|name| server(&scope, name, |_| {})));
    let mut cuts_total = 0;
    for seed in 0..12 {
        let whole = engine.generate("a", request("whole", 1, seed)).await.unwrap().samples.remove(0);
        let (pieced, cuts) = run_in_pieces(&engine, seed, seed % 2 == 0).await;
        assert_eq!(pieced.response_ids, whole.response_ids);
        assert_eq!(pieced.logprobs, whole.logprobs);
        assert_eq!(pieced.finish_reason, whole.finish_reason);
        cuts_total += cuts;
    }
    assert!(cuts_total >= 24, "{cuts_total}");
}

#[tokio::test(start_paused = true)]
async fn a_resumption_of_other_tokens_is_refused_by_the_simulation() {
    let fixture = in_process();
    // This limit is longer than every sample.
    let asked = GenerateRequest { max_tokens: 4_000, ..request("whole", 1, 7) };
    let whole = fixture.generate(asked.clone()).await.unwrap().samples.remove(0);
    let resume = |response_ids: &[u32], seed: u64| GenerateRequest {
        prompt_ids: asked.prompt_ids.iter().chain(response_ids).copied().collect(),
        resumed: Some(Resumed { tokens: response_ids.len() as u32, seed }),
        ..asked.clone()
    };
    assert!(fixture.generate(resume(&whole.response_ids[..100], 7)).await.is_ok());
    let wrong = [
        resume(&whole.response_ids[..100], 8),
        resume(&whole.response_ids[1..101], 7),
        resume(&whole.response_ids, 7),
        GenerateRequest { n: 2, ..resume(&whole.response_ids[..100], 7) },
    ];
    for request in wrong {
        let error = fixture.generate(request).await.unwrap_err();
        assert!(matches!(error, EngineError::Refused { status: 400, .. }), "{error}");
    }
}
