// A process has one libprotobuf, and it ends the process when two libraries register messages of
// the same name. libbaton-testing has the same messages as this library, and a test may link both.
// So this library's messages do not register when it is loaded, but when something asks for their
// descriptors, which nothing in it does. They are sent and parsed without.
#include "google/protobuf/generated_message_reflection.h"

namespace google::protobuf::internal {

// Every generated file calls it. Others have libprotobuf's, because libbaton.map exports none.
AddDescriptorsRunner::AddDescriptorsRunner(const DescriptorTable* /*table*/) {}

}  // namespace google::protobuf::internal
