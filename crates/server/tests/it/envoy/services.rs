//! The other services: health, reflection, and answers to requests that are not calls.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use sluicegate_proto::rls::rate_limit_service_server::SERVICE_NAME;
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::{v1, v1alpha};

use super::client::Service;

fn about(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[test]
fn health_is_serving_until_the_stop() {
    let mut service = Service::new();
    let mut client = HealthClient::new(service.channel.clone());
    for name in ["", SERVICE_NAME, "ratelimit"] {
        let actual = service.runtime.block_on(client.check(about(name))).unwrap();
        assert_eq!(actual.into_inner().status(), ServingStatus::Serving, "{name}");
    }
    let unknown = service.runtime.block_on(client.check(about("x"))).unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);

    let mut watched = service.runtime.block_on(client.watch(about(""))).unwrap().into_inner();
    let mut next = || service.runtime.block_on(watched.message()).unwrap().unwrap().status();
    assert_eq!(next(), ServingStatus::Serving);
    service.server.begin_to_stop();
    assert_eq!(next(), ServingStatus::NotServing);
}

#[test]
fn reflection_lists_services_in_both_versions() {
    let service = Service::new();
    let expected = [SERVICE_NAME, "grpc.health.v1.Health"];

    let message = v1::server_reflection_request::MessageRequest::ListServices(String::new());
    let request =
        v1::ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let mut client =
        v1::server_reflection_client::ServerReflectionClient::new(service.channel.clone());
    let answer = service.runtime.block_on(async {
        let requests = futures_util::stream::iter([request]);
        let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
        answers.message().await.unwrap().unwrap()
    });
    let answer = format!("{answer:?}");
    assert!(expected.iter().all(|it| answer.contains(it)), "{answer}");

    let symbol = SERVICE_NAME.to_owned();
    let message = v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol);
    let request =
        v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let mut client =
        v1alpha::server_reflection_client::ServerReflectionClient::new(service.channel.clone());
    let answer = service.runtime.block_on(async {
        let requests = futures_util::stream::iter([request]);
        let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
        answers.message().await.unwrap().unwrap()
    });
    use v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse;
    let Some(FileDescriptorResponse(files)) = answer.message_response else { panic!("{answer:?}") };
    let actual = String::from_utf8_lossy(&files.file_descriptor_proto[0]).into_owned();
    assert!(actual.contains("ShouldRateLimit"), "{actual}");
}

#[test]
fn request_that_is_no_call_is_rejected() {
    let service = Service::new();
    for (request, expected) in [
        ("GET / HTTP/1.1", "HTTP/1.1 405 "),
        ("POST / HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 0", "HTTP/1.1 415 "),
        (
            "POST / HTTP/1.1\r\ncontent-type: application/grpcx\r\ncontent-length: 0",
            "HTTP/1.1 415 ",
        ),
    ] {
        let mut stream = TcpStream::connect(service.server.grpc.unwrap()).unwrap();
        let text = format!("{request}\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(expected), "{request}: {answer}");
    }
    // The service of the first does not exist; of the second, the method.
    for path in ["/grpc.channelz.v1.Channelz/GetServers", "/grpc.health.v1.Health/List"] {
        let mut client = tonic::client::Grpc::new(service.channel.clone());
        let answer = service.runtime.block_on(async {
            client.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<(), ()>::default();
            client.unary(tonic::Request::new(()), path.parse().unwrap(), codec).await
        });
        assert_eq!(answer.unwrap_err().code(), Code::Unimplemented, "{path}");
    }
}
