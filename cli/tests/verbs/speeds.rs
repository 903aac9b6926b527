//! How fast links over verbs are, beside perftest and TCP over the same interface of one emulated machine.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use gleaner_statistics::median;
use gleaner_transport::conformance::{self, exchange};
use gleaner_transport::{Link, MAX_PAYLOAD, Message, Network, Peer, Tag};
use tokio::task::spawn_blocking;

use crate::machines::{Machines, alone, said};
use crate::support::{over_plain_tcp, over_verbs};

/// Round trips of a short message.
const TRIPS: usize = 1000;
/// Messages of 1 MiB in one direction.
const MESSAGES: usize = 200;
const TURNS: usize = 3;

/// What perftest measures, in the words of its tables, and what the tests below do, in turns; and then steps of a dense ring of two
/// workers with 16 MiB.
const SCRIPT: &str = "
beside() {
    $* -d rxe0 -x 1 -F >/dev/null 2>&1 & server=$!
    sleep 2
    $* -d rxe0 -x 1 -F 10.78.0.1
    wait $server
}
for turn in $(seq $TURNS); do
    beside ib_write_bw -s 1048576 -n 200 | awk '$1 == 1048576 { print \"perftest bandwidth\", $4 }'
    beside ib_send_lat -s 64 -n 1000 | awk '$1 == 64 { print \"perftest latency\", $5 }'
    $THIS --ignored --exact --nocapture speeds::one_turn | grep -E '^(verbs|woken|tcp|copied) '
done
for turn in $(seq $TURNS); do
    for transport in verbs tcp; do
        gleaner launch -n 2 --plain --transport $transport -- gleaner bench --params 4194304 --method ring --steps 5 --json |
            sed \"s/^/bench $transport /\"
    done
done
";

/// Figures to look at, and no test: an emulated processor measures little else than itself.
#[test]
#[ignore = "takes minutes, and measures"]
fn speeds_beside_perftest() {
    let _alone = alone();
    let this = std::env::current_exe().unwrap();
    let script = format!("{}\nTHIS='{}' TURNS={TURNS}\n{SCRIPT}", crate::DEVICE, this.display());
    let Some(outputs) = Machines::new(1, &script).run(&[]) else { return };
    let out = String::from_utf8_lossy(&outputs[0].stdout);
    let mut found: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for line in out.lines() {
        if let [who, what, value] = line.split_whitespace().collect::<Vec<_>>()[..]
            && let Ok(value) = value.parse()
        {
            found.entry((what, who)).or_default().push(value);
        } else {
            println!("{line}");
        }
    }
    let medians: BTreeMap<_, f64> = found
        .into_iter()
        .map(|(key, values)| {
            assert_eq!(values.len(), TURNS, "{key:?}");
            (key, median(values))
        })
        .collect();
    for ((what, who), value) in &medians {
        let (unit, of) = (if *what == "latency" { "us" } else { "MiB/s" }, medians[&(*what, "perftest")]);
        println!("{who}: {what} {value:.1} {unit}, {:.2} of perftest's", value / of);
    }
    assert!(outputs[0].status.success() && !medians.is_empty(), "{out}\n{}", said(&outputs[0]));
}

/// Run by the other, in the machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs inside a machine that has a device"]
async fn one_turn() {
    for (who, is_lent) in [("verbs", true), ("copied", false)] {
        let (latency, rate) = spinning(over_verbs(2).await, is_lent).await;
        if is_lent {
            println!("{who} latency {latency:.1}");
        }
        println!("{who} bandwidth {rate:.1}");
    }
    for (who, (latency, rate)) in
        [("woken", waiting(over_verbs(2).await).await), ("tcp", waiting(over_plain_tcp(2).await).await)]
    {
        println!("{who} latency {latency:.1}\n{who} bandwidth {rate:.1}");
    }
}

/// Both ends of one link, and what keeps them up.
async fn linked<N: Network + 'static>(networks: Vec<N>) -> Vec<(u32, N, Box<dyn Link>)> {
    let tasks = networks.into_iter().zip(0..).map(|(mut network, us)| async move {
        network.open(Peer(1 - us));
        let link = conformance::up(&mut network, Peer(1 - us)).await;
        (us, network, link)
    });
    let tasks: Vec<_> = tasks.map(tokio::spawn).collect();
    let mut linked = Vec::new();
    for task in tasks {
        linked.push(task.await.unwrap());
    }
    linked
}

fn short() -> Message {
    Message { tag: Tag(1), payload: vec![7; 64].into() }
}

/// A message of 1 MiB, in memory that the link has lent or in other.
fn long(link: &mut dyn Link, is_lent: bool) -> Message {
    let payload = if is_lent {
        let mut lease = link.lease(MAX_PAYLOAD);
        lease.fill(3);
        lease.freeze()
    } else {
        vec![3; MAX_PAYLOAD].into()
    };
    Message { tag: Tag(2), payload }
}

/// The median of half a round trip in µs.
fn half(trips: Vec<f64>) -> f64 {
    median(trips) / 2.0
}

/// Polls until there is something, as perftest does.
fn spin<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = poll(&mut context) {
            return value;
        }
        std::hint::spin_loop();
    }
}

fn send(link: &mut dyn Link, messages: Vec<Message>) {
    let left = messages.len();
    messages.into_iter().for_each(|message| link.submit(message));
    finish(link, left);
}

/// Waits until so many that were submitted are sent.
fn finish(link: &mut dyn Link, mut left: usize) {
    while left > 0 {
        left -= spin(|context| link.poll_sent(context)).unwrap();
    }
}

/// Sends a short message, and does not wait until it is sent, which perftest does not, either.
fn begin(link: &mut dyn Link, left: &mut usize) {
    link.submit(short());
    *left += 1;
    if let Poll::Ready(sent) = link.poll_sent(&mut Context::from_waker(Waker::noop())) {
        *left -= sent.unwrap();
    }
}

fn receive(link: &mut dyn Link) {
    spin(|context| link.poll_received(context)).unwrap();
}

/// The median of half a round trip of 64 bytes in µs, and MiB/s in one direction, of ends that do not wait.
async fn spinning<N: Network + 'static>(networks: Vec<N>, is_lent: bool) -> (f64, f64) {
    let linked = linked(networks).await.into_iter();
    let tasks = linked.map(|(us, network, mut link)| {
        spawn_blocking(move || {
            let link_ = &mut *link;
            let (mut trips, mut left) = (Vec::new(), 0);
            for _ in 0..TRIPS {
                let since = Instant::now();
                if us == 0 {
                    begin(link_, &mut left);
                }
                receive(link_);
                if us == 1 {
                    begin(link_, &mut left);
                }
                trips.push(since.elapsed().as_secs_f64() * 1e6);
            }
            finish(link_, left);
            let message = long(link_, is_lent);
            let since = Instant::now();
            if us == 0 {
                send(link_, vec![message; MESSAGES]);
                receive(link_);
            } else {
                (0..MESSAGES).for_each(|_| receive(link_));
                send(link_, vec![short()]);
            }
            let rate = MESSAGES as f64 / since.elapsed().as_secs_f64();
            // The first to end would cut the last message of the other.
            (half(trips), rate, network, link)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut measured = Vec::new();
    for task in tasks {
        measured.push(task.await.unwrap());
    }
    (measured[0].0, measured[0].1)
}

/// The same of ends that wait until they are woken.
async fn waiting<N: Network + 'static>(networks: Vec<N>) -> (f64, f64) {
    let linked = linked(networks).await.into_iter();
    let tasks = linked.map(|(us, network, mut link)| async move {
        let mut trips = Vec::new();
        for _ in 0..TRIPS {
            let since = Instant::now();
            if us == 0 {
                conformance::send(&mut *link, [short()]).await.unwrap();
            }
            conformance::receive(&mut *link).await.unwrap();
            if us == 1 {
                conformance::send(&mut *link, [short()]).await.unwrap();
            }
            trips.push(since.elapsed().as_secs_f64() * 1e6);
        }
        let message = long(&mut *link, true);
        let since = Instant::now();
        if us == 0 {
            exchange(&mut *link, vec![message; MESSAGES], 1, |_| {}).await.unwrap();
        } else {
            exchange(&mut *link, [], MESSAGES, |_| {}).await.unwrap();
            conformance::send(&mut *link, [short()]).await.unwrap();
        }
        (half(trips), MESSAGES as f64 / since.elapsed().as_secs_f64(), network, link)
    });
    let tasks: Vec<_> = tasks.map(tokio::spawn).collect();
    let mut measured = Vec::new();
    for task in tasks {
        measured.push(task.await.unwrap());
    }
    (measured[0].0, measured[0].1)
}
