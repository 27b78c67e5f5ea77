// An object that has gRPC and the same messages as `baton-driver`. The test is linked twice: as
// `baton-driver` is, with a libprotobuf of its own (//lib/system:private_protobuf), and as every
// other program is, which shows what that is for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/harness/temp_directory.h"
#include "tests/lib/native/forked_object.h"

namespace baton::native {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Uses the descriptors of messages, as a `baton-driver` does that has read its configuration.
void UseMessages() {
  internal::KeeperConfig config;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "service { name: 'kv' device { soft {} } }", &config));
  EXPECT_EQ(config.service().name(), "kv");
  ASSERT_NE(google::protobuf::DescriptorPool::generated_pool()->FindFileByName(
                "proto/baton/internal/keeper.proto"),
            nullptr);
}

testing::Ended RunSpeakingObject() {
  const auto directory = harness::TempDirectory::Create().value();
  return testing::RunObject(testing::PathOf("speaking_object.so"),
                            {directory.File("control.sock"), directory.File("nobody.sock")});
}

#ifndef BATON_SHARES_PROTOBUF
TEST(CollisionTest, shouldLetAnObjectHaveTheSameMessagesAndGrpc) {
  UseMessages();
  for (int i = 0; i < 3; ++i) {
    const testing::Ended ended = RunSpeakingObject();
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_THAT(ended.output,
                AllOf(HasSubstr("worker library: NOT_FOUND"), HasSubstr("protobuf: well"),
                      HasSubstr("control says: enough")));
  }
  UseMessages();
}
#else
TEST(CollisionTest, shouldEndInProtobufsCheckWhenTheLibraryIsShared) {
  UseMessages();
  const testing::Ended ended = RunSpeakingObject();
  ASSERT_TRUE(WIFSIGNALED(ended.status)) << ended.output;
  EXPECT_EQ(WTERMSIG(ended.status), SIGABRT);
  EXPECT_THAT(ended.output, HasSubstr("File already exists in database"));
}
#endif

}  // namespace
}  // namespace baton::native
