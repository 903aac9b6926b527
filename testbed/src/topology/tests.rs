use std::time::Duration;

use proptest::prelude::*;

use super::*;
use gleaner_units as units;

const RACKS: &str = r#"
subnet = "10.1.0.0/16"

[link]
bandwidth = "1gbit"
latency = "50us"

[[group]]
name = "east"
hosts = 3

[[group]]
name = "west"
hosts = ["slow", "fast"]
link = { bandwidth = "10gbit", loss = "0.1%" }

[host.slow]
jitter = "5us"
up = { bandwidth = "10mbit" }

[uplink.west]
bandwidth = "2gbit"
down = { latency = "5ms", loss = 0.01 }
"#;

fn refused(text: &str) -> String {
    Topology::parse(text).expect_err(text).to_string()
}

#[test]
fn what_is_said_nearest_to_a_link_holds() {
    let racks = Topology::parse(RACKS).unwrap();
    let names: Vec<&str> = racks.hosts().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["east0", "east1", "east2", "slow", "fast"]);
    let links: Vec<String> = racks.hosts().map(|host| host.link.to_string()).collect();
    assert_eq!(links[0], "1 Gbit/s, 50µs");
    assert_eq!(links[3], "up 10 Mbit/s, 50µs ± 5µs, 0.1000% lost; down 10 Gbit/s, 50µs ± 5µs, 0.1000% lost");
    assert_eq!(links[4], "10 Gbit/s, 50µs, 0.1000% lost");
    assert_eq!(racks.groups[0].uplink, None);
    assert_eq!(racks.groups[1].uplink.unwrap().to_string(), "up 2 Gbit/s; down 2 Gbit/s, 5ms, 1.0000% lost");
}

#[test]
fn the_example_of_the_book_is_what_it_says() {
    let page = include_str!("../../../docs/src/commands/testbed.md");
    let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let racks = Topology::parse(example).unwrap();
    let links: Vec<String> = racks.hosts().map(|host| format!("{}: {}", host.name, host.link)).collect();
    assert_eq!(
        links,
        [
            "east0: 1 Gbit/s",
            "east1: 1 Gbit/s",
            "east2: 1 Gbit/s",
            "fast: 10 Gbit/s",
            "slow: up 100 Mbit/s; down 10 Gbit/s"
        ]
    );
    assert_eq!(racks.groups[0].uplink.unwrap().to_string(), "1 Gbit/s");
    assert_eq!(racks.groups[1].uplink, None);
}

#[test]
fn what_cannot_be_is_refused_with_its_name() {
    let group = |hosts: &str| format!("[[group]]\nname = \"g\"\nhosts = {hosts}\n");
    for (text, words) in [
        (String::new(), "no host"),
        (group("0"), "no host"),
        (group("255"), "255 hosts do not fit into 10.77.0.0/24"),
        (group("99999999999"), "do not fit"),
        ("subnet = \"10.0.0.0/8\"\n".to_owned() + &group("2000"), "1023 ports"),
        ("subnet = \"10.0.0.1/8\"\n".to_owned() + &group("2"), "'10.0.0.1/8' is no subnet"),
        (group("[\"a\", \"a\"]"), "two hosts are called a"),
        (group("2") + &group("[\"a\"]"), "two groups are called g"),
        (group("[\"a/b\"]"), "'a/b' cannot be a name"),
        (group("[\"..\"]"), "'..' cannot be a name"),
        (group("[\"\"]"), "'' cannot be a name"),
        (group("\"two\""), "a number of hosts, or a list of their names"),
        (group("2") + "[host.h2]\nbandwidth = \"1gbit\"\n", "no host h2; there are g0, g1"),
        (group("2") + "[uplink.h]\nbandwidth = \"1gbit\"\n", "no group h; there are g"),
        (group("2") + "link = { bandwidth = \"1gbps\" }", "'1gbps' is no bandwidth"),
        (group("2") + "link = { bandwidth = \"1bit\" }", "cannot be emulated; expected 8kbit to 1tbit"),
        (group("2") + "link = { latency = \"50\" }", "'50' is no time"),
        (group("2") + "link = { latency = \"2000s\" }", "at most a minute"),
        (group("2") + "link = { jitter = \"1ms\" }", "larger than the latency"),
        (group("2") + "link = { loss = \"100%\" }", "'100%' is no loss"),
        (group("2") + "link = { loss = -0.1 }", "'-0.1' is no loss"),
        (group("2") + "link = { speed = \"1gbit\" }", "unknown field `speed`"),
        (group("2") + "link = { up = { speed = \"1gbit\" } }", "unknown field `speed`"),
        (group("2") + "colour = \"red\"", "unknown field `colour`"),
        ("group".into(), "expected"),
    ] {
        let sentence = refused(&text);
        assert!(sentence.contains(words), "{text} gave: {sentence}");
    }
    let path = Path::new("/nowhere/topology.toml");
    assert!(Topology::read(path).unwrap_err().to_string().contains("/nowhere/topology.toml cannot be read"));
}

fn shapes() -> impl Strategy<Value = Shape> {
    let rate = proptest::option::of((8u64..1_000_000_000).prop_map(|kbit| format!("{kbit}kbit")));
    let rate = rate.prop_map(|text| text.map(|text| units::rate(&text).unwrap()));
    let times = (0u64..30_000_000_000).prop_flat_map(|delay| (Just(delay), 0..=delay));
    (rate, times, 0u32..1000).prop_map(|(rate, (delay, jitter), loss)| Shape {
        rate,
        delay: Duration::from_nanos(delay),
        jitter: Duration::from_nanos(jitter),
        loss: format!("{}%", f64::from(loss) / 10.0).parse().unwrap(),
    })
}

proptest! {
    /// What a state file keeps is what was asked for, but for the last bit of a rate.
    #[test]
    fn links_survive_being_written_down(up in shapes(), down in shapes(), hosts in 1usize..254) {
        let there = Topology::uniform(hosts, Subnet::default(), Link { up, down }).unwrap();
        let back: Topology = serde_json::from_str(&serde_json::to_string(&there).unwrap()).unwrap();
        prop_assert_eq!(there.hosts().count(), back.hosts().count());
        for (shape, read) in there.shapes().zip(back.shapes()) {
            prop_assert_eq!(Shape { rate: None, ..*shape }, Shape { rate: None, ..*read });
            let rate = |shape: &Shape| shape.rate.map_or(0.0, units::Rate::bytes_per_second);
            prop_assert!((rate(shape) - rate(read)).abs() <= 1e-9 * rate(shape));
        }
    }

    /// Percent and share mean the same.
    #[test]
    fn losses(share in 0.0..1.0f64) {
        let of = |text: String| text.parse::<Loss>().map(Loss::share);
        prop_assert_eq!(of(share.to_string()), Ok(share));
        let percent = of(format!("{}%", 100.0 * share));
        prop_assert!((percent.unwrap() - share).abs() < 1e-12);
    }

    /// All hosts of a subnet have addresses, all different, inside it, and none is the first or the last.
    #[test]
    fn addresses(first in any::<u32>(), prefix in 20u32..=30) {
        let ones_behind = u32::MAX >> prefix;
        let first = first & !ones_behind;
        let subnet: Subnet = format!("{}/{prefix}", std::net::Ipv4Addr::from_bits(first)).parse().unwrap();
        let addresses: Vec<u32> = (0..).map_while(|i| subnet.address(i)).map(|a| a.to_bits()).collect();
        let expected: Vec<u32> = (1..ones_behind).map(|i| first + i).collect();
        prop_assert_eq!(addresses, expected);
        prop_assert_eq!(subnet.to_string().parse(), Ok(subnet));
    }

    /// No text makes it panic.
    #[test]
    fn any_text_is_read_or_refused(text in ".*") {
        let _ = Topology::parse(&text);
        let _ = text.parse::<Loss>();
        let _ = text.parse::<Subnet>();
    }
}
