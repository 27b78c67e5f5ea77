# find_package(baton) makes the targets baton::baton and baton::peer (baton/peer.h), and the function
# baton_add_service.
# Where /lib is a link to /usr/lib, CMake may have come by either, and headers are in /usr alone.
get_filename_component(_baton_lib "${CMAKE_CURRENT_LIST_DIR}/../.." REALPATH)
get_filename_component(_baton_prefix "${_baton_lib}/../.." ABSOLUTE)

if(NOT TARGET baton::baton)
  add_library(baton::baton SHARED IMPORTED)
  set_target_properties(baton::baton PROPERTIES
    IMPORTED_LOCATION "${_baton_lib}/libbaton.so.0"
    IMPORTED_SONAME libbaton.so.0
    INTERFACE_INCLUDE_DIRECTORIES "${_baton_prefix}/include")
endif()
if(NOT TARGET baton::peer)
  add_library(baton::peer SHARED IMPORTED)
  set_target_properties(baton::peer PROPERTIES
    IMPORTED_LOCATION "${_baton_lib}/libbaton-peer.so.0"
    IMPORTED_SONAME libbaton-peer.so.0
    INTERFACE_INCLUDE_DIRECTORIES "${_baton_prefix}/include")
endif()

# baton_add_service(NAME SOURCE...): NAME, the program of a brokered worker, and NAME.so, the object
# that native workers load. Both come from the same sources, which define main.
function(baton_add_service name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE baton::baton)
  add_library(${name}-native MODULE ${ARGN})
  set_target_properties(${name}-native PROPERTIES PREFIX "" OUTPUT_NAME ${name} SUFFIX .so)
  target_link_libraries(${name}-native PRIVATE baton::baton)
endfunction()
