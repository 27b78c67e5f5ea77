// Carries Baton's messages, which its process may have had before, and talks gRPC with itself: the
// stream of the worker library to a control of its own.
#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/text_format.h"
#include "grpcpp/grpcpp.h"
#include "proto/baton/internal/keeper.pb.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "worker/control_stream.h"
#include "worker/worker.h"

namespace {

using baton::v1::AttachRequest;
using baton::v1::AttachResponse;

class Control : public baton::v1::WorkerService::Service {
  grpc::Status Attach(grpc::ServerContext*,
                      grpc::ServerReaderWriter<AttachResponse, AttachRequest>* stream) override {
    AttachRequest request;
    if (!stream->Read(&request) || request.hello().token() != "a token") {
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "no hello");
    }
    AttachResponse response;
    response.mutable_welcome()->set_worker_id(7);
    stream->Write(response);
    response.mutable_shutdown()->set_reason("enough");
    stream->Write(response);
    while (stream->Read(&request)) {
    }
    return grpc::Status::OK;
  }
};

class NoService : public baton::Service {
  void OnCompletion(baton::Shard&, const baton::Completion&) override {}
};

bool SpeakProtobuf() {
  baton::internal::WorkerRequest request, copy;
  request.mutable_attach()->set_name("speaking");
  std::string text;
  return google::protobuf::TextFormat::PrintToString(request, &text) &&
         google::protobuf::TextFormat::ParseFromString(text, &copy) &&
         copy.attach().name() == "speaking";
}

std::string SpeakGrpc(const std::string& socket) {
  Control control;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  builder.RegisterService(&control);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server) return "no server";
  std::promise<std::string> asked;
  baton::ControlStreamOptions options;
  options.control_socket = socket;
  options.service = "kv";
  options.first_token = "a token";
  options.new_token = [] { return absl::UnavailableError("there was one token"); };
  options.on_handoff = [](const std::vector<uint32_t>&) {};
  options.on_shutdown = [&](const std::string& reason) { asked.set_value(reason); };
  auto stream = baton::ControlStream::Start(std::move(options));
  if (!stream.ok()) return stream.status().ToString();
  auto reason = asked.get_future();
  const bool came = reason.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  (*stream)->Stop();
  server->Shutdown();
  return came ? reason.get() : "control was not heard: " + (*stream)->status().ToString();
}

}  // namespace

int main(int, char** argv) {
  NoService service;
  const auto worker = baton::Worker::Attach({.socket = argv[2], .service = "kv"}, &service);
  printf("worker library: %s\n", worker.status().ToString().c_str());
  printf("protobuf: %s\n", SpeakProtobuf() ? "well" : "not at all");
  printf("control says: %s\n", SpeakGrpc(argv[1]).c_str());
  return 0;
}
