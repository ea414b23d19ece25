use http::Request;

use super::*;

fn found(by: ClientAddress, peer: Option<&str>, headers: &[(&str, &str)]) -> Option<String> {
    let mut request = Request::builder();
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    if let Some(peer) = peer {
        request = request.extension(peer.parse::<SocketAddr>().unwrap());
    }
    let request = request.body(()).unwrap();
    let mut key = Bytes::new();
    by.push(&Head::of(&request), &mut key);
    let part = String::from_utf8(key.to_vec()).unwrap();
    let (length, rest) = part.strip_suffix(',').unwrap().split_once(':')?;
    assert_eq!(length.parse(), Ok(rest.len()), "{part}");
    Some(rest.to_owned())
}

#[test]
fn peer_address_is_network_without_port_and_zone() {
    for (peer, key) in [
        ("192.0.2.7:80", "192.0.2.7"),
        ("0.0.0.0:1", "0.0.0.0"),
        ("[::ffff:192.0.2.7]:80", "192.0.2.7"),
        ("[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"),
        ("[fe80::1%3]:80", "fe80::/64"),
    ] {
        assert_eq!(found(ClientAddress::peer(), Some(peer), &[]).as_deref(), Some(key), "{peer}");
    }
    assert_eq!(found(ClientAddress::peer(), None, &[("x-forwarded-for", "192.0.2.7")]), None);
}

#[test]
fn prefixes_set_the_size_of_networks() {
    for (v4, v6, of_v4, of_v6) in [
        (24, 56, "192.0.2.0/24", "2001:db8:1::/56"),
        (0, 0, "0.0.0.0/0", "::/0"),
        (25, 128, "192.0.2.128/25", "2001:db8:1:2:3:4:5:6"),
        (99, 255, "192.0.2.255", "2001:db8:1:2:3:4:5:6"),
    ] {
        let by = ClientAddress::peer().prefixes(v4, v6);
        assert_eq!(found(by, Some("192.0.2.255:1"), &[]).as_deref(), Some(of_v4));
        let peer = Some("[2001:db8:1:2:3:4:5:6]:1");
        assert_eq!(found(by, peer, &[]).as_deref(), Some(of_v6));
    }
}

/// The address by `X-Forwarded-For`, behind `proxies` proxies.
fn behind(proxies: usize, values: &[&str]) -> String {
    let headers: Vec<_> = values.iter().map(|value| ("x-forwarded-for", *value)).collect();
    found(ClientAddress::x_forwarded_for(proxies), Some("10.0.0.1:1"), &headers).unwrap()
}

#[test]
fn forwarded_entry_beyond_trusted_proxies_is_ignored() {
    for (proxies, values, address) in [
        (1, &["192.0.2.7"][..], "192.0.2.7"),
        (1, &["8.8.8.8, 192.0.2.7"], "192.0.2.7"),
        (1, &["8.8.8.8", "192.0.2.7"], "192.0.2.7"),
        (2, &["8.8.8.8, 192.0.2.7", " 10.0.0.2 "], "192.0.2.7"),
        (2, &["8.8.8.8, 192.0.2.7,10.0.0.2,, "], "192.0.2.7"),
        (0, &["192.0.2.7"], "10.0.0.1"),
        // Fewer entries than proxies: the farthest there is.
        (3, &["192.0.2.7"], "192.0.2.7"),
        (1, &[], "10.0.0.1"),
        (1, &[""], "10.0.0.1"),
        // An entry that is not an address: the farthest before it.
        (1, &["8.8.8.8, unknown"], "10.0.0.1"),
        (2, &["unknown, 10.0.0.2"], "10.0.0.2"),
        (2, &["8.8.8.8, unknown, 10.0.0.2"], "10.0.0.2"),
        (1, &["8.8.8.8, \u{ff}"], "10.0.0.1"),
        // Ports and brackets.
        (1, &["192.0.2.7:8080"], "192.0.2.7"),
        (1, &["2001:db8::7"], "2001:db8::/64"),
        (1, &["[2001:db8::7]"], "2001:db8::/64"),
        (1, &["[2001:db8::7]:8080"], "2001:db8::/64"),
        (1, &["fe80::7%eth0"], "fe80::/64"),
        (1, &["::ffff:192.0.2.7"], "192.0.2.7"),
        (1, &["192.0.2.7:"], "10.0.0.1"),
        (1, &["192.0.2.7:x"], "10.0.0.1"),
        (1, &["[2001:db8::7]x"], "10.0.0.1"),
        (1, &["[2001:db8::7"], "10.0.0.1"),
        (1, &["192.0.2.7%eth0"], "10.0.0.1"),
        (1, &["192.0.2.256"], "10.0.0.1"),
    ] {
        assert_eq!(behind(proxies, values), address, "{proxies} {values:?}");
    }
    assert_eq!(found(ClientAddress::x_forwarded_for(1), None, &[]), None);
}

#[test]
fn forwarded_is_read_from_its_end() {
    for (proxies, values, address) in [
        (1, &["for=192.0.2.7"][..], "192.0.2.7"),
        (1, &["for=8.8.8.8, For=\"192.0.2.7:80\";proto=http"], "192.0.2.7"),
        (1, &["proto=http; for = \"[2001:db8::7]:80\"; by=10.0.0.1"], "2001:db8::/64"),
        (2, &["for=8.8.8.8, for=192.0.2.7", "for=10.0.0.2"], "192.0.2.7"),
        // An unclosed quote of an earlier element does not hide the element of the proxy.
        (1, &["for=\"8.8.8.8, for=192.0.2.7"], "192.0.2.7"),
        (1, &["for=\"8.8.8.8, for=\"[2001:db8::7]\""], "2001:db8::/64"),
        (1, &["for=x\\, for=\"192.0.2.7\""], "192.0.2.7"),
        // Nor does a host that pretends.
        (1, &["host=\"x;for=8.8.8.8\";for=192.0.2.7"], "192.0.2.7"),
        (1, &["for=192.0.2.7;host=\"x, for=8.8.8.8\""], "192.0.2.7"),
        (1, &["for=192.0.2.7;host=\"x\\\", for=8.8.8.8;a=\\\"\""], "192.0.2.7"),
        (1, &["for=unknown"], "10.0.0.1"),
        (1, &["for=_hidden"], "10.0.0.1"),
        (1, &["for=\"192.0.2.7"], "10.0.0.1"),
        (1, &["proto=http"], "10.0.0.1"),
        (1, &[], "10.0.0.1"),
    ] {
        let headers: Vec<_> = values.iter().map(|value| ("forwarded", *value)).collect();
        let by = ClientAddress::forwarded(proxies);
        let key = found(by, Some("10.0.0.1:1"), &headers);
        assert_eq!(key.as_deref(), Some(address), "{proxies} {values:?}");
    }
}

#[test]
fn text_of_v4_equals_display() {
    for octet in 0..=255 {
        for other in [0, 9, 10, 99, 100, 255] {
            for octets in [[octet, other, 1, 22], [other, octet, 100, 0], [3, 50, octet, other]] {
                let address = Ipv4Addr::from(octets);
                let expected = address.to_string();
                let (text, length) = text_of_v4(address);
                let text = text.map(u64::to_le_bytes).concat();
                assert_eq!(&text[..length.into()], expected.as_bytes());
            }
        }
    }
}
