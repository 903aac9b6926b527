//! What was measured, as a table and as JSON.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

use gleaner_cuda::OffloadTimes;

/// What was measured with n entries.
pub struct Row {
    pub n: usize,
    pub k: usize,
    /// A copy on the device, and the bytes that it reads and writes.
    pub copy: Duration,
    pub copied: usize,
    pub accumulate: Duration,
    /// Accumulate and select.
    pub step: Duration,
    /// Steps whose threshold served, of so many.
    pub predicted: (usize, usize),
    pub commit: Duration,
    pub from_idle: Duration,
    /// A selection without a prediction.
    pub search: Duration,
    pub bag_out: Option<Duration>,
    pub bare_out: Duration,
    /// The bag as it travels: by the host, into a message.
    pub encoded: Duration,
    /// By both, if its indices are encoded on the device: what it has chosen, and indices that come from the host. The least times.
    pub encoded_chosen: Option<OffloadTimes>,
    pub encoded_given: Option<OffloadTimes>,
    /// By the host: a bag that came, and two merged.
    pub decoded: Duration,
    pub merged: Duration,
    /// A bag that came decoded and added to another, by both: the least times.
    pub added: Option<OffloadTimes>,
    pub bag_in: Duration,
    pub bare_in: Duration,
    pub kernels: Vec<Kernel>,
    /// Whether the host selects the same, if it was asked.
    pub equal: Option<bool>,
}

/// What a kernel or a copy takes, as often as a step has it.
pub struct Kernel {
    pub name: String,
    pub count: usize,
    pub each: Duration,
}

/// What another program takes for the same: a line of JSON each.
pub struct Peer {
    name: String,
    n: usize,
    /// To the end of the selection.
    us: f64,
    /// And until the residual is zero there.
    whole_us: Option<f64>,
    /// Whether it merges two bags instead.
    merges: bool,
}

impl Peer {
    /// How many times as long as a step, and as a step with its commit; or as merging on the host.
    fn ratios(&self, row: &Row) -> (f64, Option<f64>) {
        let ours = if self.merges { row.merged } else { row.step };
        (self.us / us(ours), self.whole_us.map(|whole| whole / us(row.step + row.commit)))
    }
}

/// Reads what the scripts beside this print.
pub fn peers(file: &str) -> Result<Vec<Peer>, Box<dyn Error>> {
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("\"{name}\":"))?;
        let rest = rest.trim_start();
        let text = rest.strip_prefix('"').map(|text| text.split('"').next());
        text.unwrap_or_else(|| rest.split([',', '}']).next()).map(str::to_owned)
    };
    let lines = fs::read_to_string(file)?;
    let peer = |line: &str| {
        let name = field(line, "peer")?;
        let number = |name| field(line, name)?.parse().ok();
        let n = field(line, "n")?.parse().ok()?;
        let merges = field(line, "of").is_some_and(|of| of == "merge");
        Some(Peer { name, n, us: number("us")?, whole_us: number("whole_us"), merges })
    };
    Ok(lines.lines().filter_map(peer).collect())
}

fn us(time: Duration) -> f64 {
    1e6 * time.as_secs_f64()
}

/// GB/s.
fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-12) / 1e9
}

impl Row {
    fn copy_rate(&self) -> f64 {
        rate(self.copied, self.copy)
    }

    /// What part of the copy's rate 12 n bytes have in this time.
    fn share(&self, time: Duration) -> f64 {
        rate(12 * self.n, time) / self.copy_rate()
    }

    /// Kernels of a step, without that of the commit.
    fn launches(&self) -> usize {
        let is_kernel = |kernel: &&Kernel| !kernel.name.contains(' ') && kernel.name != "clear_at";
        self.kernels.iter().filter(is_kernel).map(|kernel| kernel.count).sum()
    }
}

/// For people.
pub fn table(device: &str, floor: Duration, rows: &[Row], peers: &[Peer]) -> String {
    let mut text = format!("{device}, top 1%, medians; a launch of next to nothing: {:.2} us\n", us(floor));
    for row in rows {
        write_row(&mut text, row, floor, peers);
    }
    text
}

fn write_row(text: &mut String, row: &Row, floor: Duration, peers: &[Peer]) {
    let mut line = |name: &str, time: Duration, more: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:34} {:>11.1} us  {more}", us(time));
    };
    let of_copy = |time| {
        format!(
            "{:7.0} GB/s of 12 n bytes, {:5.1}% of the copy's",
            rate(12 * row.n, time),
            100.0 * row.share(time)
        )
    };
    line(&format!("n = {}: copy on the device", row.n), row.copy, format!("{:7.0} GB/s", row.copy_rate()));
    line("accumulate", row.accumulate, of_copy(row.accumulate));
    let predicted = format!(", predicted {} of {}", row.predicted.0, row.predicted.1);
    line("accumulate and select", row.step, of_copy(row.step) + &predicted);
    if !row.kernels.is_empty() {
        let launches = row.launches() as u32;
        line("  as many launches of nothing", floor * launches, format!("{launches} launches"));
    }
    line("commit", row.commit, String::new());
    line("from idle to entries on the host", row.from_idle, String::new());
    line("select without a prediction", row.search, String::new());
    let bag = 8 * row.k;
    let of_bare = |time: Duration, bare: Duration| {
        format!(
            "{bag} bytes, bare copy {:.1} us: {:.0}%",
            us(bare),
            100.0 * bare.as_secs_f64() / time.as_secs_f64().max(1e-12)
        )
    };
    if let Some(out) = row.bag_out {
        line("bag to the host", out, of_bare(out, row.bare_out));
    }
    line("bag encoded by the host", row.encoded, String::new());
    write_both(&mut line, ["  without the message", "  chosen indices by the device"], row.encoded_chosen);
    write_both(&mut line, ["  without the message", "  the host's indices by the device"], row.encoded_given);
    line("bag decoded by the host", row.decoded, String::new());
    line("two bags merged by the host", row.merged, String::new());
    write_both(&mut line, ["bag decoded and merged by the host", "  by the device"], row.added);
    line("bag from the host, applied", row.bag_in, of_bare(row.bag_in, row.bare_in));
    for Kernel { name, count, each } in &row.kernels {
        line(&format!("    {name}"), *each, format!("x {count}"));
    }
    for peer in peers.iter().filter(|peer| peer.n == row.n) {
        let time = Duration::from_secs_f64(peer.us / 1e6);
        let (selected, whole) = peer.ratios(row);
        let whole = whole.map_or(String::new(), |whole| format!(", {whole:.1} with the commit"));
        let what = if peer.merges { " as merging on the host" } else { "" };
        line(&peer.name, time, format!("{selected:.1} times as long{what}{whole}"));
    }
    if let Some(equal) = row.equal {
        let _ =
            writeln!(text, "  the host selects {}", if equal { "the same, bit by bit" } else { "OTHERWISE" });
    }
}

/// What both sides took, under a name for each.
fn write_both(
    mut line: impl FnMut(&str, Duration, String),
    [host, device]: [&str; 2],
    times: Option<OffloadTimes>,
) {
    let Some(times) = times else { return };
    line(host, times.host, format!("least of {}", times.times));
    let ratio = times.host.as_secs_f64() / times.device.as_secs_f64().max(1e-12);
    line(device, times.device, format!("{ratio:.1} times as fast"));
}

/// For programs: one line.
pub fn json(device: &str, floor: Duration, rows: &[Row], peers: &[Peer]) -> String {
    let rows: Vec<String> = rows.iter().map(|row| row_json(row, peers)).collect();
    format!(r#"{{"device":"{device}","launch_us":{:.3},"rows":[{}]}}"#, us(floor), rows.join(","))
}

fn row_json(row: &Row, peers: &[Peer]) -> String {
    let kernel = |kernel: &Kernel| {
        format!(r#"{{"name":"{}","count":{},"us":{:.2}}}"#, kernel.name, kernel.count, us(kernel.each))
    };
    let peer = |peer: &Peer| {
        let (selected, whole) = peer.ratios(row);
        let whole = whole.map_or("null".to_owned(), |whole| format!("{whole:.3}"));
        format!(
            r#"{{"name":"{}","merges":{},"us":{:.2},"ratio":{selected:.3},"ratio_with_commit":{whole}}}"#,
            peer.name, peer.merges, peer.us
        )
    };
    let kernels: Vec<String> = row.kernels.iter().map(kernel).collect();
    let peers: Vec<String> = peers.iter().filter(|peer| peer.n == row.n).map(peer).collect();
    let mut text = format!(r#"{{"n":{},"k":{},"copy_gb_s":{:.1}"#, row.n, row.k, row.copy_rate());
    let times = [
        ("copy_us", Some(row.copy)),
        ("accumulate_us", Some(row.accumulate)),
        ("step_us", Some(row.step)),
        ("commit_us", Some(row.commit)),
        ("from_idle_us", Some(row.from_idle)),
        ("search_us", Some(row.search)),
        ("bag_out_us", row.bag_out),
        ("bare_out_us", Some(row.bare_out)),
        ("encoded_us", Some(row.encoded)),
        ("encoded_chosen_us", row.encoded_chosen.map(|times| times.host)),
        ("encoded_chosen_there_us", row.encoded_chosen.map(|times| times.device)),
        ("encoded_given_us", row.encoded_given.map(|times| times.host)),
        ("encoded_given_there_us", row.encoded_given.map(|times| times.device)),
        ("decoded_us", Some(row.decoded)),
        ("merged_us", Some(row.merged)),
        ("added_us", row.added.map(|added| added.host)),
        ("added_there_us", row.added.map(|added| added.device)),
        ("bag_in_us", Some(row.bag_in)),
        ("bare_in_us", Some(row.bare_in)),
    ];
    for (name, time) in times {
        let time = time.map_or("null".to_owned(), |time| format!("{:.2}", us(time)));
        let _ = write!(text, r#","{name}":{time}"#);
    }
    let _ = write!(
        text,
        r#","accumulate_share":{:.4},"step_share":{:.4},"predicted":{},"steps":{},"equal":{},"kernels":[{}],"peers":[{}]}}"#,
        row.share(row.accumulate),
        row.share(row.step),
        row.predicted.0,
        row.predicted.1,
        row.equal.map_or("null".to_owned(), |equal| equal.to_string()),
        kernels.join(","),
        peers.join(",")
    );
    text
}
