use proptest::prelude::*;

use super::*;

fn decoded(text: &[u8]) -> Vec<u8> {
    unescaped(text).map(|(byte, _)| byte).collect()
}

/// The paths of all readings of a target.
fn paths(target: &str) -> Vec<String> {
    Readings::of(target).all().map(|it| it.path.clone().into_owned()).collect()
}

#[test]
fn canonical_path_spellings_become_one() {
    for (given, expected) in [
        ("/login", "/login"),
        ("/%6Cogin", "/login"),
        ("//login", "/login"),
        ("/./login", "/login"),
        ("/a/../login", "/login"),
        ("/../../login", "/login"),
        ("/%2e%2E/login", "/login"),
        ("/a/..", "/"),
        ("/a/b/..", "/a/"),
        ("/a/.", "/a/"),
        ("/a/", "/a/"),
        ("/a//", "/a/"),
        ("/a//../b", "/b"),
        ("/a%2fb", "/a%2Fb"),
        ("/a\\b%5c", "/a%5Cb%5C"),
        ("/a%", "/a%25"),
        ("/a%zz", "/a%25zz"),
        ("/a%25zz", "/a%25zz"),
        ("/%c3%bc", "/%C3%BC"),
        ("/ü b\u{0}", "/%C3%BC%20b%00"),
        ("/a?b", "/a%3Fb"),
        ("/a#b", "/a%23b"),
        ("", "/"),
        ("login", "/login"),
        ("*", "/*"),
        ("/.well-known", "/.well-known"),
        ("/a;b=c/d", "/a;b=c/d"),
    ] {
        assert_eq!(canonical_path(given), expected, "{given}");
        assert_eq!(canonical_path(expected), expected, "{given}");
    }
}

#[test]
fn readings_plain_target_has_one() {
    for target in ["/", "/login", "/v1/items?page=2", "/a/b.txt?x=%2f//..", "/a;b", "/~u/@x:y?"] {
        let readings = Readings::of(target);
        assert!(readings.others.is_none(), "{target}: {readings:?}");
        assert!(matches!(readings.first.path, Cow::Borrowed(_)), "{target}");
    }
    // Nor do escapes that all servers read alike make more than one.
    for target in ["/caf%C3%A9", "/a%20b", "/users/a%40b.c", "/.well-known/x", "/100%25", "/a%7eb"]
    {
        assert!(Readings::of(target).others.is_none(), "{target}: {:?}", Readings::of(target));
    }
}

#[test]
fn readings_contain_what_each_server_delivers() {
    for target in [
        "/login#x",
        "/login#",
        "/login#?x",
        "/%2flogin",
        "/x%2f..%2flogin",
        "/x/..%2Flogin",
        "/%2e/login",
        "/./login",
        "/x/../login",
        "/x/%2e%2e/login",
        "//login",
        "///login",
        "http://h/login",
        "HTTP://h:80/login",
        "http://u:p@h/login?x",
        "https://h//login",
        "http:/login",
        "http:login",
        "HTTP:\\\\h\\login",
        "x:/login",
        "\\login",
        "/\\login",
        "/x\\..\\login",
        "/x%5c..%5clogin",
        "//h/login",
        "/\\h/login",
        "\\\\h\\login",
        "///h/login",
        "/%6cogin",
        "/%6C%6f%67%69%6E",
        "/%256cogin",
        "/%252e/login",
        "/x%252f..%252flogin",
        "/lo\tgin",
        " /login",
        "/login\n",
        "/login%00x",
        "/login%3fx",
        "/login%23x",
        "/x//../login",
        "/x//../../login",
        "/login/.",
        "/login/x/..",
        "login",
        "/..//login",
        "/x/..//login",
        "/..%2f..%2flogin",
    ] {
        assert!(paths(target).contains(&"/login".to_owned()), "{target}: {:?}", paths(target));
    }
    // These are other paths to every common server, unless a rule's options ignore the difference.
    for target in ["/login/", "/LOGIN", "/login;x", "/login/x", "/loginx", "/log%2fin", "/login%20"]
    {
        assert!(!paths(target).contains(&"/login".to_owned()), "{target}: {:?}", paths(target));
    }
}

#[test]
fn readings_keep_what_was_sent_where_it_differs() {
    for (target, expected) in [
        ("//health", Some("//health")),
        ("/a/../health", Some("/a/../health")),
        ("/health#/../login", Some("/health%23/../login")),
        ("http://h/health", None),
        ("/%68ealth", None),
    ] {
        let others = Readings::of(target).others;
        let as_sent = others.and_then(|others| others.as_sent).map(|it| it.path.into_owned());
        assert_eq!(as_sent.as_deref(), expected, "{target}");
    }
    assert!(paths("/health#/../login").contains(&"/login".to_owned()));
}

#[test]
fn readings_query_begins_at_the_first_question_mark() {
    let queries = |target: &str| {
        let readings = Readings::of(target);
        readings.all().map(|it| it.query.clone().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(queries("/a?b=1?c"), ["b=1?c"]);
    assert_eq!(queries("/a?b=1#c"), ["b=1", "b=1#c"]);
    assert_eq!(queries("/a#?b"), ["", "b"]);
    assert_eq!(queries("/a?"), [""]);
}

/// nginx, `ngx_http_parse_complex_uri` with `merge_slashes on`, written as a list of segments. `None` where
/// nginx answers 400.
fn nginx(target: &str) -> Option<Vec<u8>> {
    if target.bytes().any(|byte| byte <= b' ') {
        return None;
    }
    let path = target.split(['?', '#']).next()?;
    let path = path.strip_prefix("http://h").unwrap_or(path);
    if !path.starts_with('/') {
        return None;
    }
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        if *first == b'%' {
            let byte = u8::from_str_radix(std::str::from_utf8(rest.get(..2)?).ok()?, 16).ok()?;
            rest = &rest[2..];
            bytes.push(byte);
        } else {
            bytes.push(*first);
        }
    }
    let mut segments: Vec<&[u8]> = Vec::new();
    let parts: Vec<&[u8]> = bytes[1..].split(|byte| *byte == b'/').collect();
    for (at, part) in parts.iter().enumerate() {
        let last = at + 1 == parts.len();
        match *part {
            b"" | b"." if !last => {}
            b"" | b"." => segments.push(b""),
            b".." => {
                segments.pop()?;
                if last {
                    segments.push(b"");
                }
            }
            part => segments.push(part),
        }
    }
    Some([b"/", segments.join(&b'/').as_slice()].concat())
}

/// Go, `path.Clean(request.URL.Path)`. `None` where Go answers 400.
fn go(target: &str) -> Option<Vec<u8>> {
    if target.bytes().any(|byte| byte <= b' ') {
        return None;
    }
    let path = target.split('?').next()?;
    let path = path.strip_prefix("http://h").unwrap_or(path);
    if !path.starts_with('/') {
        return None;
    }
    let escapes = path.split('%').skip(1);
    let valid = |it: &str| it.len() >= 2 && it.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit);
    if !escapes.clone().all(valid) {
        return None;
    }
    let bytes = decoded(path.as_bytes());
    let mut segments: Vec<&[u8]> = Vec::new();
    for part in bytes.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            part => segments.push(part),
        }
    }
    let mut out = Vec::new();
    segments.iter().for_each(|it| out.extend([b"/", *it].concat()));
    Some(if out.is_empty() { b"/".to_vec() } else { out })
}

/// WHATWG, the path of `new URL(target, "http://base")`. `None` for schemes other than `http`.
fn whatwg(target: &str) -> Option<String> {
    let text = target.trim_matches(|it: char| it <= ' ').replace(['\t', '\r', '\n'], "");
    let text = text.split('#').next().unwrap_or_default();
    let text = text.split('?').next().unwrap_or_default().replace('\\', "/");
    let text = match text.get(..5) {
        Some(scheme) if scheme.eq_ignore_ascii_case("http:") => &text[5..],
        _ if scheme(text.as_bytes()).is_some() => return None,
        _ => &text,
    };
    // Special authority slashes, where there are two; relative slash otherwise.
    let path = match text.strip_prefix("//") {
        Some(rest) => {
            let rest = rest.trim_start_matches('/');
            rest.find('/').map_or("", |at| &rest[at..])
        }
        None => text,
    };
    let mut segments: Vec<&str> = Vec::new();
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    for (at, part) in parts.iter().enumerate() {
        let last = at + 1 == parts.len();
        match &*part.to_ascii_lowercase().replace("%2e", ".") {
            ".." => {
                segments.pop();
                segments.extend(last.then_some(""));
            }
            "." => segments.extend(last.then_some("")),
            _ => segments.push(part),
        }
    }
    Some(format!("/{}", segments.join("/")))
}

/// The bytes that a canonical path represents.
fn meant(path: &str) -> Vec<u8> {
    decoded(path.as_bytes())
}

/// Pieces that mean something to some server.
fn targets() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "/", "/", "/", "//", "\\", ".", "..", "%2e", "%2f", "%2F", "%5c", "%25", "%252f", "%00",
        "#", "?", ";", "login", "a", "%6c", "%", "\t", " ", "http://h", "http:", "ü",
    ]);
    let start = prop::sample::select(vec!["", "/", "/", "/", "http://h/", "//"]);
    (start, prop::collection::vec(piece, 0..9))
        .prop_map(|(start, it)| start.to_owned() + &it.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn readings_are_canonical_and_few(target in targets()) {
        let readings = Readings::of(&target);
        prop_assert!(readings.all().count() <= 49);
        for reading in readings.all() {
            prop_assert_eq!(&canonical_path(&reading.path), &reading.path, "{}", target);
        }
        prop_assert_eq!(plain(&target).is_some(), plain(&target).is_some_and(|(path, query)| {
            Reading::by(FIRST, &target) == Reading::borrowed(path, query)
        }));
        if plain(&target).is_some() {
            prop_assert!(Readings::unusual(&target).others.is_none(), "{}", target);
        }
    }

    #[test]
    fn readings_contain_the_reference_of_each_server(target in targets()) {
        let paths = paths(&target);
        let has = |path: &[u8]| paths.iter().any(|it| meant(it) == path);
        // A path of nginx and Go may contain a slash only as a separator, so that the bytes are unambiguous.
        if let Some(path) = nginx(&target) {
            prop_assert!(has(&path), "nginx {:?}: {:?} in {:?}", target, path, paths);
        }
        if let Some(path) = go(&target) {
            let slash = [&path[..], b"/"].concat();
            prop_assert!(has(&path) || has(&slash), "go {:?}: {:?} in {:?}", target, path, paths);
        }
        // Without escapes that it keeps, and with slashes merged, as a canonical path is.
        if let Some(path) = whatwg(&target) {
            let path = canonical_path(&path).into_owned();
            prop_assert!(paths.contains(&path), "whatwg {:?}: {:?} in {:?}", target, path, paths);
        }
    }
}

/// The path of a server that removes parameters, then decodes, as Tomcat does; with `\\` as `/` if it is to.
fn without_parameters_first(target: &str, backslash: bool) -> String {
    let segments = target.split('/').map(|it| it.split(';').next().unwrap_or_default());
    let joined = segments.collect::<Vec<_>>().join("/");
    let path = String::from_utf8(decoded(joined.as_bytes())).unwrap();
    let path = if backslash { path.replace('\\', "/") } else { path };
    canonical_path(&path.replace('%', "%25")).into_owned()
}

fn stripped(target: &str) -> Vec<String> {
    let options = crate::PathOptions { strip_parameters: true, ..crate::PathOptions::default() };
    Readings::of(target).all().map(|it| options.apply(&it.path).into_owned()).collect()
}

#[test]
fn readings_with_a_separator_in_parameters_have_the_path_before_them() {
    for target in [
        "/x/..%2flogin;%2f..",
        "/x/..%2Flogin;a=b%2F..%2F..",
        "/x\\..\\login;%2f..",
        "/x/..%5clogin;%5c..",
        "/x/..%2flogin;\\..",
        "/x/..%252flogin;%2f..",
        "/x/..%252flogin;%252f..",
        "/x/..%252flogin%3b%252f..",
        "/login;%2f../",
        "/x;%2f../../login;%2f..",
        "/x/..%2flogin;%2f..?q=;%2f",
        "/x/..%2flogin;%2f..#top",
    ] {
        let paths = stripped(target);
        assert!(
            paths.iter().any(|path| path.trim_end_matches('/') == "/login"),
            "{target}: {paths:?}"
        );
        // Under a strict rule, the parameters are a part of the path.
        assert!(!self::paths(target).contains(&"/login".to_owned()), "{target}");
        let others = Readings::of(target).others.unwrap();
        assert!(others.readings.len() <= 48, "{target}");
    }
}

proptest! {
    #[test]
    fn readings_have_each_path_of_a_server_that_removes_parameters_first(
        parts in proptest::collection::vec(
            proptest::sample::select(vec![
                "/x", "/..", "/", "..", ".", "login", "/login", ";", ";a=b", ";%2f..", "%2f", "%2F..", "\\", "%5c",
                "%2e", "%3b", "%6c",
            ]),
            0..7,
        ),
    ) {
        let target = format!("/{}", parts.concat());
        let paths = stripped(&target);
        for backslash in [false, true] {
            let expected = without_parameters_first(&target, backslash);
            let options = crate::PathOptions { strip_parameters: true, ..Default::default() };
            let expected = options.apply(&expected).into_owned();
            let slash = |path: &str| path.trim_end_matches('/').to_owned();
            prop_assert!(
                paths.iter().any(|path| slash(path) == slash(&expected)),
                "{target}: {expected} is not in {paths:?}"
            );
        }
    }
}

/// One step of a server. Between steps, a path is text in which escapes remain to be decoded.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// `..`, `.` and repeated slashes; whether slashes are merged first.
    Resolve(bool),
    /// Removes `;` and what follows in each segment.
    Strip,
    /// Whether `%2F` is decoded, too, and whether `\` then becomes `/`.
    Decode(bool, bool),
    /// What Envoy does to `%2E` and `\` before it resolves dots.
    Unescape,
}

impl Step {
    fn apply(self, path: &str) -> String {
        match self {
            Self::Resolve(merges) => {
                let mut segments: Vec<&str> = Vec::new();
                let parts: Vec<&str> = path[1..].split('/').collect();
                for (at, part) in parts.iter().enumerate() {
                    let last = at + 1 == parts.len();
                    match *part {
                        "." => segments.extend(last.then_some("")),
                        "" if merges && !last => {}
                        ".." => {
                            segments.pop();
                            segments.extend(last.then_some(""));
                        }
                        part => segments.push(part),
                    }
                }
                let last = segments.pop();
                segments.retain(|it| !it.is_empty());
                segments.extend(last);
                format!("/{}", segments.join("/"))
            }
            Self::Strip => {
                let mut out = String::new();
                let mut is_parameter = false;
                for char in path.chars() {
                    is_parameter = char == ';' || is_parameter && char != '/';
                    out.extend((!is_parameter).then_some(char));
                }
                out
            }
            Self::Decode(slash, backslash) => {
                let mut path = path.replace("%2e", ".").replace("%3b", ";").replace("%5c", "\\");
                if slash {
                    path = path.replace("%2f", "/");
                }
                if backslash { path.replace('\\', "/") } else { path }
            }
            Self::Unescape => path.replace("%2e", ".").replace('\\', "/"),
        }
    }
}

/// Servers, and chains of a proxy and a server, as the steps that they perform.
fn models() -> Vec<Vec<Step>> {
    use Step::{Decode, Resolve, Strip, Unescape};
    let mut models = Vec::new();
    for slash in [false, true] {
        for backslash in [false, true] {
            let decode = Decode(slash, backslash);
            for merges in [false, true] {
                let resolve = Resolve(merges);
                for proxy in [&[][..], &[Unescape, Resolve(false)], &[decode, Resolve(true)]] {
                    for server in [
                        // Tomcat and Jetty.
                        &[Strip, decode, resolve][..],
                        // Servers that decode first.
                        &[decode, Strip, resolve],
                        &[decode, resolve, Strip],
                        &[decode, resolve],
                    ] {
                        models.push([proxy, server].concat());
                    }
                }
            }
        }
    }
    models
}

/// Fails if a model delivers `/login`, and no reading is that path.
fn check_models(target: &str, models: &[Vec<Step>]) -> Result<(), String> {
    let mut read: Option<[Vec<String>; 2]> = None;
    for model in models {
        let path = model.iter().fold(target.to_owned(), |path, step| step.apply(&path));
        if path != "/login" && path != "/login/" {
            continue;
        }
        let [strict, loose] = read.get_or_insert_with(|| [paths(target), stripped(target)]);
        let strips = model.iter().any(|step| matches!(step, Step::Strip));
        let paths = if strips { loose } else { strict };
        if !paths.contains(&path) {
            return Err(format!("{target}: {model:?} delivers {path}, not in {paths:?}"));
        }
    }
    Ok(())
}

#[test]
fn readings_of_short_targets_contain_what_each_order_of_steps_delivers() {
    const PIECES: [&str; 10] = ["/", ".", "..", ";", "x", "%2f", "%2e%2e", "%3b", "%5c", "\\"];
    let models = models();
    let mut tails = vec![String::new()];
    for _ in 0..3 {
        tails = tails.iter().flat_map(|it| PIECES.map(|piece| it.clone() + piece)).collect();
        for tail in &tails {
            for target in
                [format!("/login{tail}"), format!("/login/{tail}"), format!("/x{tail}/login")]
            {
                check_models(&target, &models).unwrap();
            }
        }
    }
}

#[test]
fn readings_with_empty_segments_contain_what_each_order_of_steps_delivers() {
    for target in [
        "/login/%3b/..;",
        "/login/%3bx/..;",
        "/login/%3b/%2e%2e;",
        "/login;/%3b/..;",
        "/login%2f%3b/..;",
        "/login%2F%3B/..;",
        "/login/;/..;",
        "/login/..;/../%3b/..;",
        "/x/;..%2f../login",
        "/x/;/..;/../login;%2f",
        "/x/..%2f;/../login",
    ] {
        let paths = stripped(target);
        assert!(
            paths.iter().any(|path| path.trim_end_matches('/') == "/login"),
            "{target}: {paths:?}"
        );
        let lower = target.to_ascii_lowercase();
        check_models(&lower, &models()).unwrap();
    }
}

#[test]
fn readings_of_ordinary_escapes_and_parameters_are_one() {
    for target in ["/files/a%3Bb", "/a;jsessionid=1%20x", "/a%3bb;c/d", "/v1..v2%20x", "/a;b/c%3Ad"]
    {
        assert!(Readings::of(target).others.is_none(), "{target}: {:?}", Readings::of(target));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn readings_contain_what_each_order_of_steps_delivers(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "/", "/", ".", "..", "..", ";", "x", "%2f", "%2e", "%3b", "%3b", "%5c", "\\", "/login", "login",
                "/..;", "/%3b",
            ]),
            0..9,
        ),
        end in prop::sample::select(vec!["", "/..;", "/..", "%2f..;", "/../", ";%2f..", "/login", ";"]),
    ) {
        for start in ["/login/", "/login", "/x/", "/"] {
            let target = format!("{start}{}{end}", parts.concat());
            prop_assert_eq!(check_models(&target, &models()), Ok(()));
            prop_assert!(Readings::of(&target).all().count() <= 49, "{}", target);
        }
    }
}
