// Tells on standard output what it is given and when it ends; the test says how it ends.
#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "worker/worker.h"

namespace {

class Witness {
 public:
  ~Witness() { (void)!write(STDOUT_FILENO, "static destructor\n", 18); }
};
Witness g_witness;

class NoService : public baton::Service {
  void OnCompletion(baton::Shard&, const baton::Completion&) override {}
};

}  // namespace

int main(int argc, char** argv) {
  printf("argc %d, name %s\n", argc, program_invocation_short_name);
  for (int i = 1; i < argc; ++i) printf("argument %s\n", argv[i]);
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "exit") exit(9);
  if (how == "attach") {
    NoService service;
    const auto worker = baton::Worker::Attach({.service = "kv", .control_stream = false}, &service);
    printf("%s\n", worker.status().ToString().c_str());
  }
  return 7;
}
