//! Applications that exchange messages over their flows. One side asks, the other answers, and the first asks again.

use super::messages::Messages;
use crate::machine::Applications;
use crate::run::server::work::ServerWorkload;
use std::collections::VecDeque;

/// What an application and its clients exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Exchange {
    /// Whether the server asks, and its clients answer.
    pub(super) server_asks: bool,
    request_bytes: u64,
    answer_bytes: u64,
    /// Requests of a flow that are written at once, and how many such groups are out.
    pub(super) group: u64,
    groups: u64,
    /// The bytes that the application of the server reads at once, at most.
    pub(super) read_bytes: u64,
    /// The cycles of the server for each request, and for each KiB of what it reads beside the copy out of the kernel.
    pub(super) cycles: u64,
    pub(super) cycles_per_kib: u64,
}

impl Exchange {
    /// What a workload exchanges, if it does. `size` is that of what it is about: a value, a page, a block, a message.
    pub(super) fn of(workload: ServerWorkload, size: u32, costs: &Applications) -> Option<Self> {
        let size = u64::from(size);
        let usual = Self {
            server_asks: false,
            request_bytes: size,
            answer_bytes: size,
            group: 1,
            groups: 1,
            read_bytes: 128 << 10,
            cycles: 0,
            cycles_per_kib: 0,
        };
        match workload {
            ServerWorkload::Redis => Some(Self {
                // [F] §4.2: only SET, keys of 4 bytes, 32 requests in flight. The client (redis-benchmark) writes them
                // at once, and the next ones after the last reply. In the protocol of Redis, a command has 32 bytes
                // beside a value whose length has four digits, and the reply is `+OK`.
                request_bytes: size + 32,
                answer_bytes: 5,
                group: 32,
                // PROTO_IOBUF_LEN of Redis. From PROTO_MBULK_BIG_ARG on, a value is read as a whole into its place.
                read_bytes: if size < 32 << 10 { 16 << 10 } else { size },
                cycles: costs.redis_cycles,
                cycles_per_kib: if size < 32 << 10 { costs.redis_cycles_per_kib } else { 0 },
                ..usual
            }),
            ServerWorkload::Nginx => Some(Self {
                request_bytes: 48,        // of `wrk`: the request line and `Host`
                answer_bytes: size + 240, // assumed: the headers of nginx
                cycles: costs.nginx_cycles,
                ..usual
            }),
            ServerWorkload::Spdk => Some(Self {
                server_asks: true,
                request_bytes: 72,       // NVMe over TCP: a capsule of a command
                answer_bytes: size + 24, // and the header of data
                groups: 8,               // [F] §4.2: the depth
                cycles: costs.spdk_cycles,
                ..usual
            }),
            ServerWorkload::RpcTail => Some(Self { cycles: costs.rpc_cycles, ..usual }),
            _ => None,
        }
    }
}

/// The exchange of a flow.
#[derive(Debug)]
pub(super) struct Dialogue {
    pub(super) exchange: Exchange,
    pub(super) requests: Messages,
    pub(super) answers: Messages,
    /// When each group of requests that is out was written, and how many answers of the first have come.
    asked_ps: VecDeque<u64>,
    answered: u64,
    /// The latency of each group, from its requests to the last answer, in the order of these.
    pub(super) latencies_ps: Vec<u64>,
}

impl Dialogue {
    pub(super) fn new(exchange: Exchange, segment_bytes: u64) -> Self {
        Self {
            exchange,
            requests: Messages::new(exchange.request_bytes, segment_bytes),
            answers: Messages::new(exchange.answer_bytes, segment_bytes),
            asked_ps: VecDeque::new(),
            answered: 0,
            latencies_ps: Vec::new(),
        }
    }

    /// What the server writes, and what it reads.
    pub(super) fn written(&mut self) -> &mut Messages {
        if self.exchange.server_asks { &mut self.requests } else { &mut self.answers }
    }

    /// See [`written`](Self::written).
    pub(super) fn read(&mut self) -> &mut Messages {
        if self.exchange.server_asks { &mut self.answers } else { &mut self.requests }
    }

    /// The server has read so many messages. Returns the packets of each of its writes.
    pub(super) fn server_read(&mut self, now_ps: u64, messages: u64) -> Vec<u64> {
        if self.exchange.server_asks { self.ask_again(now_ps, messages) } else { self.answer(messages) }
    }

    /// The same of the client.
    pub(super) fn client_read(&mut self, now_ps: u64, messages: u64) -> Vec<u64> {
        if self.exchange.server_asks { self.answer(messages) } else { self.ask_again(now_ps, messages) }
    }

    fn answer(&mut self, requests: u64) -> Vec<u64> {
        if requests > 0 { vec![self.answers.write(requests)] } else { Vec::new() }
    }

    /// Asks until as many groups as allowed are out. Returns the packets of each.
    pub(super) fn ask(&mut self, now_ps: u64) -> Vec<u64> {
        let missing = self.exchange.groups - self.asked_ps.len() as u64;
        self.asked_ps.extend((0..missing).map(|_| now_ps));
        (0..missing).map(|_| self.requests.write(self.exchange.group)).collect()
    }

    /// The side that asks has read so many answers.
    fn ask_again(&mut self, now_ps: u64, answers: u64) -> Vec<u64> {
        self.answered += answers;
        while self.answered >= self.exchange.group {
            self.answered -= self.exchange.group;
            let asked_ps = self.asked_ps.pop_front().expect("there is no answer without a request");
            self.latencies_ps.push(now_ps - asked_ps);
        }
        self.ask(now_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Applications =
        Applications { redis_cycles: 1, redis_cycles_per_kib: 2, nginx_cycles: 3, spdk_cycles: 4, rpc_cycles: 5 };

    fn dialogue(workload: ServerWorkload, size: u32) -> Dialogue {
        Dialogue::new(Exchange::of(workload, size, &COSTS).expect("it exchanges messages"), 8948)
    }

    #[test]
    fn a_group_is_asked_again_with_its_last_answer() {
        let mut redis = dialogue(ServerWorkload::Redis, 4096);
        assert_eq!(redis.ask(10), [(32u64 * 4128).div_ceil(8948)]);
        assert!(redis.ask(20).is_empty(), "one group is out");
        assert!(redis.client_read(30, 31).is_empty() && redis.latencies_ps.is_empty());
        assert_eq!((redis.client_read(40, 1).len(), redis.latencies_ps.clone()), (1, vec![30]));
        assert_eq!(redis.server_read(50, 4), [1], "one packet with four answers");

        let mut spdk = dialogue(ServerWorkload::Spdk, 32 << 10);
        assert_eq!(spdk.ask(0), [1; 8]);
        assert_eq!((spdk.server_read(7, 3), spdk.latencies_ps.clone()), (vec![1; 3], vec![7; 3]));
        assert_eq!(spdk.client_read(8, 1), [4], "a block of 32 KiB, with its header, takes four packets");
        assert_eq!(Exchange::of(ServerWorkload::Iperf, 0, &COSTS), None);
    }
}
