//! The page in a real browser, without a window: it loads nothing, nothing complains, and no words run into each other.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{LazyLock, mpsc};

use tempfile::TempDir;

use crate::command::page;
use crate::samples;

/// Where pictures of the page are kept for people to look at.
const ARTEFACTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/artefacts");

/// Looks for words outside of their picture, words upon words, and a page wider than its window. What it finds becomes
/// the text of an element of its own, so that `--dump-dom` shows it.
const INSPECTION: &str = r#"<script>
const found = [];
for (const svg of document.querySelectorAll('figure svg')) {
  const [, , width, height] = svg.getAttribute('viewBox').split(' ').map(Number);
  const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent.trim(), text.getBBox()]);
  boxes.forEach(([words, a], i) => {
    if (a.x < 0 || a.y < 0 || a.x + a.width > width || a.y + a.height > height) found.push(`outside: ${words}`);
    for (const [others, b] of boxes.slice(i + 1)) {
      const across = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
      const down = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
      if (across > 1 && down > 4) found.push(`upon each other: ${words} / ${others}`);
    }
  });
}
const wide = document.documentElement.scrollWidth, window_ = document.documentElement.clientWidth;
if (wide > window_) found.push(`the page is ${wide} wide in a window of ${window_}`);
const result = document.createElement('p');
result.id = 'inspection';
result.textContent = `${document.querySelectorAll('figure svg').length} pictures; ` + (found.join('; ') || 'nothing found');
document.body.append(result);
</script>"#;

/// Whether there is a browser. A package may hold only a script that says where the browser is to be had.
static IS_THERE: LazyLock<bool> = LazyLock::new(|| {
    Command::new("chromium").arg("--version").output().is_ok_and(|output| output.status.success())
});

/// Runs the browser on a page in a window of this width; nothing where there is no browser.
fn browse(page: &Path, width: u32, arguments: &[&str]) -> Option<Output> {
    if !*IS_THERE {
        gleaner_skips::skip(
            "chromium",
            "chromium does not start here; install it with apt-get install chromium",
        );
        return None;
    }
    let profile = TempDir::new().unwrap();
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--hide-scrollbars",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-dev-shm-usage", "--enable-logging=stderr", "--force-color-profile=srgb"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},2400"))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

fn dump(page: &Path, width: u32, arguments: &[&str]) -> Option<String> {
    let output = browse(page, width, &[arguments, &["--dump-dom"]].concat())?;
    Some(String::from_utf8(output.stdout).unwrap())
}

/// What the browser's console said.
fn complaints(output: &Output) -> Vec<String> {
    let log = String::from_utf8_lossy(&output.stderr);
    log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect()
}

/// The page with something before its end, and without its policy if that would forbid it.
fn with(page: &str, more: &str, policy: bool) -> String {
    let page = page.replacen("</body>", &format!("{more}</body>"), 1);
    if policy { page } else { page.replacen("http-equiv=\"Content-Security-Policy\"", "", 1) }
}

/// The path of a file that is kept.
fn artefact(name: &str) -> String {
    fs::create_dir_all(ARTEFACTS).unwrap();
    let file = format!("{ARTEFACTS}/{name}");
    // That of an earlier run would be taken for this one's.
    let _ = fs::remove_file(&file);
    file
}

#[track_caller]
fn expect_picture(file: &str) {
    let picture = fs::read(file).unwrap();
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000, "{file} has {} bytes", picture.len());
}

#[test]
fn nothing_complains_and_nothing_is_loaded() {
    let folder = TempDir::new().unwrap();
    let text = page(folder.path(), &samples::everything());
    let path = folder.path().join("run/report.html");
    // A picture to be kept as well, since every start of the browser takes seconds.
    let wide = artefact("report-wide.png");
    let shot = format!("--screenshot={wide}");
    let Some(output) = browse(&path, 1200, &["--dump-dom", shot.as_str()]) else { return };
    expect_picture(&wide);
    assert_eq!(complaints(&output), Vec::<String>::new());
    let dom = String::from_utf8(output.stdout).unwrap();
    assert_eq!(dom.matches("<svg").count(), text.matches("<svg").count());
    // That a complaint would be seen, and that the policy keeps the page from the network.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let image = format!("<img src=\"http://{}/picture.png\">", server.local_addr().unwrap());
    fs::write(&path, with(&text, &image, true)).unwrap();
    let output = browse(&path, 1200, &["--dump-dom"]).unwrap();
    assert!(!complaints(&output).is_empty(), "a forbidden image passed in silence");
    assert_eq!(server.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    fs::write(&path, with(&text, &image, false)).unwrap();
    server.set_nonblocking(false).unwrap();
    let (asked, is_asked) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in server.incoming().flatten() {
            asked.send(()).unwrap();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream
                    .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            });
        }
    });
    browse(&path, 1200, &["--dump-dom"]).unwrap();
    assert_eq!(is_asked.try_recv(), Ok(()), "without the policy the browser would have asked");
}

#[test]
fn words_stand_clear_in_wide_and_narrow_windows() {
    let folder = TempDir::new().unwrap();
    let text = page(folder.path(), &samples::everything());
    let path = folder.path().join("run/report.html");
    let pictures = format!("{} pictures", text.matches("<svg").count());
    fs::write(&path, with(&text, INSPECTION, false)).unwrap();
    for width in [1200, 400] {
        let Some(dom) = dump(&path, width, &[]) else { return };
        let result = dom.split_once("<p id=\"inspection\">").unwrap().1.split_once("</p>").unwrap().0;
        assert_eq!(result, format!("{pictures}; nothing found"), "in a window of {width}");
    }
    // That the inspection finds what it looks for.
    let wide = "<figure><svg viewBox=\"0 0 40 40\" width=\"9000\"><text x=\"30\" y=\"20\">words</text>\
                <text x=\"32\" y=\"21\">more words</text></svg></figure>";
    fs::write(
        &path,
        with(
            &text.replace("max-width: 34rem", "").replace("width: 100%;", ""),
            &format!("{wide}{INSPECTION}"),
            false,
        ),
    )
    .unwrap();
    let dom = dump(&path, 1200, &[]).unwrap();
    for finding in ["outside: words", "upon each other: words / more words", "the page is"] {
        assert!(dom.contains(finding), "{finding}");
    }
}

#[test]
fn pictures_of_the_page_are_kept() {
    let folder = TempDir::new().unwrap();
    let text = page(folder.path(), &samples::everything());
    let path = folder.path().join("run/report.html");
    fs::write(artefact("report.html"), text).unwrap();
    // The wide one comes with the DOM of another test.
    for (name, width, arguments) in [
        ("report-narrow.png", 500, &[][..]),
        ("report-dark.png", 1200, &["--blink-settings=preferredColorScheme=0"][..]),
    ] {
        let file = artefact(name);
        let shot = format!("--screenshot={file}");
        if browse(&path, width, &[arguments, &[shot.as_str()]].concat()).is_none() {
            return;
        }
        expect_picture(&file);
    }
}
