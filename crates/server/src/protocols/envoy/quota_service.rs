//! Envoy's quota service (RLQS): the streams, each driven by a [`QuotaStream`].
//!
//! Invariants: a stream that is invalid, silent or above a maximum ends with a status, and costs nothing after that; a
//! client that reads no messages gets none, and its assignments expire. Of all streams, one at a time uses a store elsewhere: each
//! runs as a task of its own, so that none holds up the others because its client reads nothing.

use std::{
    future::pending,
    hash::{BuildHasher as _, RandomState},
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt as _, Stream, stream::unfold};
use sluicegate_core::{Answer, KeyedOperation, StoreError, Timestamp};
use sluicegate_proto::{
    rlqs::{
        BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
        rate_limit_quota_response::{
            BucketAction,
            bucket_action::{self, AbandonAction, QuotaAssignmentAction},
        },
        rate_limit_quota_service_server::RateLimitQuotaService,
    },
    strategy::{RateLimitStrategy, TokenBucket, rate_limit_strategy::Strategy},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit, mpsc, watch},
    task::yield_now,
    time::{Instant, sleep, sleep_until},
};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    context::EnvoyContext,
    quota::{self, Action, DELIVERY, HOLD, LIFETIME, LedgerOperation, QuotaStream, Usage},
};
use crate::{budgets::buffers::BufferReservation, decide::Decider, net::web::StreamedBytes};

/// A stream without a message for so long is ended: Envoy 1.40 sends one every 5 s.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Maximum number of messages that are taken together.
const MAX_MESSAGES: usize = 4096;

/// The quota service of one worker.
#[derive(Debug)]
pub(super) struct QuotaCalls {
    context: Arc<EnvoyContext>,
    stopping: watch::Receiver<bool>,
}

impl QuotaCalls {
    pub(super) const fn new(context: Arc<EnvoyContext>, stopping: watch::Receiver<bool>) -> Self {
        Self { context, stopping }
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<RateLimitQuotaResponse, Status>> + Send>>;

#[async_trait]
impl RateLimitQuotaService for QuotaCalls {
    type StreamRateLimitQuotasStream = Responses;

    async fn stream_rate_limit_quotas(
        &self,
        mut request: Request<Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Responses>, Status> {
        let stats = &self.context.quotas;
        let max = self.context.config.max_quota_streams;
        if !stats.streams.try_add(max) {
            stats.rejected_streams.add();
            return Err(Status::resource_exhausted(format!(
                "too many quota streams: expected at most {max}"
            )));
        }
        let received = request.extensions_mut().remove::<StreamedBytes>();
        let (responses, receiver) = mpsc::channel(1);
        tokio::spawn(Driver::new(self, request.into_inner(), received).run(responses));
        let responses = unfold(Some(receiver), |receiver| async {
            let mut receiver = receiver?;
            match receiver.recv().await? {
                (at, Ok(_)) if at.elapsed() > DELIVERY => {
                    let text = format!("no message was read in {DELIVERY:?}");
                    Some((Err(Status::deadline_exceeded(text)), None))
                }
                (_, response) => Some((response, Some(receiver))),
            }
        });
        Ok(Response::new(Box::pin(responses)))
    }
}

/// One stream with its Envoy.
struct Driver {
    context: Arc<EnvoyContext>,
    stopping: watch::Receiver<bool>,
    messages: Streaming<RateLimitQuotaUsageReports>,
    /// The bytes that are counted for the message that arrives.
    received: Option<StreamedBytes>,
    stream: QuotaStream,
    /// The end of the messages, if it came during a turn.
    ended: Option<Result<(), Status>>,
    /// The memory of its buckets.
    memory: BufferReservation,
    /// When the last message arrived, and when the stream ends at the latest.
    heard: Instant,
    ends: Option<Instant>,
}

/// A message for Envoy or the status at the end, and when it was made.
type Sent = (Instant, Result<RateLimitQuotaResponse, Status>);

/// The end of a stream: the status, or `None` if Envoy has ended it.
type End = Option<Status>;

impl Driver {
    fn new(
        calls: &QuotaCalls,
        messages: Streaming<RateLimitQuotaUsageReports>,
        received: Option<StreamedBytes>,
    ) -> Self {
        let context = Arc::clone(&calls.context);
        // A server with state in memory does not know what its predecessor has assigned.
        let not_before =
            if context.decider.is_local() { context.started + HOLD } else { Timestamp::EPOCH };
        let max_buckets = context.config.max_quota_buckets;
        let stream =
            QuotaStream::new(stream_id(), not_before, max_buckets, Arc::clone(&context.quotas));
        let heard = Instant::now();
        let max_age = context.config.max_age;
        Self {
            memory: context.buffers.reserve_nothing(),
            stopping: calls.stopping.clone(),
            messages,
            received,
            stream,
            ended: None,
            heard,
            ends: (!max_age.is_zero()).then(|| heard + max_age),
            context,
        }
    }

    /// Runs the stream to its end.
    async fn run(mut self, responses: mpsc::Sender<Sent>) {
        loop {
            let next = tokio::select! {
                () = responses.closed() => return,
                next = self.next() => next,
            };
            let (response, has_ended) = match next {
                Ok(response) => (Ok(response), false),
                Err(Some(status)) => (Err(status), true),
                Err(None) => return,
            };
            if responses.send((Instant::now(), response)).await.is_err() || has_ended {
                return;
            }
        }
    }

    /// The next message for Envoy.
    async fn next(&mut self) -> Result<RateLimitQuotaResponse, End> {
        let context = Arc::clone(&self.context);
        loop {
            let _permit = self.wait(&context.quota_turns).await.inspect_err(|end| {
                if end.is_some() {
                    context.quotas.invalid.add();
                }
            })?;
            let now = self.context.decider.now();
            if !self.stream.begin_turn(now) {
                continue;
            }
            loop {
                let operations = self.stream.operations();
                if operations.is_empty() {
                    break;
                }
                let answers =
                    self.while_reading(decide(&context.decider, &operations, now)).await?;
                self.stream.answers(self.context.decider.now(), answers);
            }
            let actions = self.stream.take_actions();
            if !actions.is_empty() {
                let bucket_action = actions.into_iter().map(encode).collect();
                return Ok(RateLimitQuotaResponse { bucket_action });
            }
        }
    }

    /// Waits until the stream needs a turn, and has one of the `turns`. Takes all messages that have arrived.
    async fn wait<'t>(&mut self, turns: &'t Semaphore) -> Result<SemaphorePermit<'t>, End> {
        // It keeps its place while messages arrive.
        let mut permit = pin!(turns.acquire());
        loop {
            self.take_arrived()?;
            let now = self.context.decider.now();
            let turn = self.stream.next_turn().map(|at| at.since(now));
            let turn = async {
                match turn {
                    Some(Duration::ZERO) => {}
                    Some(span) => sleep(span).await,
                    None => pending().await,
                }
                permit.as_mut().await
            };
            let silence = self.heard + MAX_SILENCE;
            let ends = self.ends;
            let end = async {
                match ends {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            let message = tokio::select! {
                biased;
                _ = self.stopping.wait_for(|stops| *stops) => {
                    return Err(Some(Status::unavailable("the server stops")));
                }
                () = end => return Err(Some(Status::unavailable("the connection has reached its maximum age"))),
                permit = turn => return permit.map_err(|_| None),
                message = self.messages.message() => message,
                () = sleep_until(silence) => {
                    return Err(Some(Status::deadline_exceeded(format!("no report in {MAX_SILENCE:?}"))));
                }
            };
            self.take(message?.ok_or(None)?)?;
        }
    }

    /// Takes the messages that have arrived.
    fn take_arrived(&mut self) -> Result<(), End> {
        if let Some(end) = self.ended.take() {
            return Err(end.err());
        }
        for _ in 0..MAX_MESSAGES {
            let Some(message) = self.messages.message().now_or_never() else { break };
            self.take(message?.ok_or(None)?)?;
        }
        Ok(())
    }

    /// The result of `future`. Takes messages until it is there: HTTP/2 closes a connection with many that are not read.
    async fn while_reading<T>(&mut self, future: impl Future<Output = T>) -> Result<T, End> {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                biased;
                result = &mut future => return Ok(result),
                message = self.messages.message(), if self.ended.is_none() => match message {
                    Ok(Some(message)) => self.take(message)?,
                    Ok(None) => self.ended = Some(Ok(())),
                    Err(status) => self.ended = Some(Err(status)),
                },
            }
        }
    }

    /// Takes a message of reports.
    fn take(&mut self, message: RateLimitQuotaUsageReports) -> Result<(), End> {
        self.heard = Instant::now();
        if let Some(received) = &self.received {
            received.release();
        }
        let rules = self.context.decider.rules.current();
        let counters = &self.context.decider.rules.counters;
        let find = |domain: &str, bucket: &quota::BucketId| {
            quota::find(&rules.rules, counters, domain, bucket)
        };
        let now = self.context.decider.now();
        let usages = message.bucket_quota_usages.into_iter().map(|usage| Usage {
            bucket: usage.bucket_id.unwrap_or_default().bucket,
            allowed: usage.num_requests_allowed,
            denied: usage.num_requests_denied,
        });
        let reported = self.stream.report(now, &message.domain, usages, &find);
        reported.map_err(|error| Some(Status::invalid_argument(error.to_string())))?;
        if !self.memory.resize(self.stream.bytes()) {
            let text = "the memory for requests and replies is used up";
            return Err(Some(Status::resource_exhausted(text)));
        }
        Ok(())
    }
}

/// Applies the operations to the store.
async fn decide(
    decider: &Decider,
    operations: &[LedgerOperation],
    now: Timestamp,
) -> Vec<Result<Answer, StoreError>> {
    let operations: Vec<KeyedOperation<'_>> =
        operations.iter().map(LedgerOperation::keyed).collect();
    if !decider.is_local() {
        return decider.decide_many_remote(&operations, now).await;
    }
    let (mut answers, mut start) = (Vec::with_capacity(operations.len()), now);
    for operation in operations {
        if decider.is_late(start) {
            yield_now().await;
            start = decider.now();
        }
        answers.push(decider.decide(operation.into(), start).await);
    }
    answers
}

fn encode(Action { bucket, assignment }: Action) -> BucketAction {
    let seconds = |seconds: u64| prost_types::Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: 0,
    };
    let action = match assignment {
        None => bucket_action::BucketAction::AbandonAction(AbandonAction {}),
        Some(it) => {
            let tokens = TokenBucket {
                max_tokens: it.max_tokens,
                tokens_per_fill: Some(it.tokens_per_fill),
                fill_interval: Some(seconds(it.fill_interval.into())),
                name: String::new(),
            };
            bucket_action::BucketAction::QuotaAssignmentAction(QuotaAssignmentAction {
                assignment_time_to_live: Some(seconds(LIFETIME.as_secs())),
                rate_limit_strategy: Some(RateLimitStrategy {
                    strategy: Some(Strategy::TokenBucket(tokens)),
                }),
            })
        }
    };
    let bucket_id = Some(BucketId { bucket: (*bucket).clone() });
    BucketAction { bucket_id, bucket_action: Some(action) }
}

/// A random id.
fn stream_id() -> [u8; 16] {
    let half = |number: u64| RandomState::new().hash_one(number).to_be_bytes();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&half(0));
    id[8..].copy_from_slice(&half(1));
    id
}
