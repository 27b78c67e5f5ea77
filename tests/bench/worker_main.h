// What the workers of the benchmark have in common: their command line, and their life.
#ifndef TESTS_BENCH_WORKER_MAIN_H_
#define TESTS_BENCH_WORKER_MAIN_H_

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "lib/base/status.h"
#include "worker/worker.h"

namespace baton::bench {

inline absl::Status AttachAndServe(const WorkerOptions& options, const std::string& host,
                                   Service* service) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, service));
  BATON_ASSIGN_OR_RETURN(const uint16_t port, worker->Listen(host, 0));
  BATON_RETURN_IF_ERROR(worker->Ready());
  std::printf("bench server ready port=%u\n", unsigned{port});
  std::fflush(stdout);
  return worker->Run();
}

// Attaches `service`, listens, says "bench server ready port=N", and serves until it is asked to
// end. Returns the exit code of `program`.
inline int ServeWorker(int argc, char** argv, const std::string& program,
                       const std::string& description, Service* service) {
  WorkerOptions options;
  std::string host;
  CLI::App app{description};
  app.add_option("--socket", options.socket, "the service's socket")->required();
  app.add_option("--service", options.service, "name of the service")->required();
  app.add_option("--host", host, "IPv4 address to listen on")->required();
  app.add_option("--yield-microseconds", options.yield_microseconds,
                 "how long it yields before it sleeps");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = AttachAndServe(options, host, service);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", program.c_str(), std::string(status.message()).c_str());
  return 1;
}

}  // namespace baton::bench

#endif  // TESTS_BENCH_WORKER_MAIN_H_
